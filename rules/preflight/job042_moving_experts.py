"""The engine moves experts between ranks, and weight updates write them to their first places.

## What it checks
An engine whose weights are updated does not balance its experts (EPLB) and has no redundant ones, except where the framework
writes every copy at its present place.

## Why it matters
- A weight update names an expert by its number in the model. EPLB moves experts to other slots and adds copies. vLLM's loaders
  still use the placement of the start: after a rebalance, an update writes weights into the slots of other experts, and nothing
  fails.
- A rebalance that runs beside the update copies the older weights over the new ones.
- NeMo-RL (`nccl_reshard`, and NIXL with sharded experts) and prime-rl (other than NCCL with quantized transfer) refuse such a job.
- SGLang writes by its own map of places, and slime sends it all experts then: that is only slower.

## How to fix
`enable_eplb: false` (vLLM), without redundant experts. On its own, expert parallelism is fine.

## When it can be wrong
In a version of vLLM that refuses the update itself or keeps the map, or with a loader of the job's own.

## Seen in
vllm-project/vllm#55228 (a rebalance from [0, 1, 2, 3] to [0, 2, 1, 3], then a reload: experts 1 and 2 are exchanged),
PrimeIntellect-ai/prime-rl#3583, NVIDIA-NeMo/RL nemo_rl/weight_sync/nccl_reshard_utils.py, THUDM/slime
slime/backends/megatron_utils/update_weight/expert_routing.py
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.jobs.job import Job


@rule(
    "JOB042",
    "moving-experts",
    severity="warning",
    on="job",
    when=lambda job: (
        job.updates_weights
        and (job["engine.balances_experts"].status == "set" or job["engine.redundant_experts"].status == "set")
    ),
)
def check(job: Job) -> Iterator[Problem]:
    job.require_resolved("engine.balances_experts", "engine.redundant_experts", "update.transport")
    moves, copies = job.flag("engine.balances_experts"), job.number("engine.redundant_experts")
    if not moves and not copies:
        return
    at = "engine.balances_experts" if moves else "engine.redundant_experts"
    doing = (
        f"moves experts between ranks while it runs, EPLB ({job[at].place})"
        if moves
        else f"has {job.describe(at)} redundant experts"
    )
    transport = job.text("update.transport") or ""
    if job.framework == "prime-rl":
        if transport != "nccl" or not job.flag("update.quantizes"):
            yield job.problem(
                f"the engine {doing}, and prime-rl refuses that without weight_broadcast.type nccl and quantize_in_weight_transfer",
                at=at,
                severity="error",
                hint="set inference.vllm.enable_eplb to false",
            )
    elif job.framework == "NeMo-RL" and transport in ("nccl_reshard", "nixl"):
        yield job.problem(
            f"the engine {doing}, and NeMo-RL's {job.describe('update.transport')} refuses that: it fixes the place of every expert"
            " at its start",
            at=at,
            severity="error",
            hint="set enable_eplb to false, or refit_transport to null",
        )
    elif job.engine == "sglang":
        yield job.problem(
            f"the engine {doing}: every weight update sends all experts to every rank",
            at=at,
            severity="info",
            hint="turn it off where updates are slow",
        )
    else:
        yield job.problem(
            f"the engine {doing}, and a weight update writes experts where they were at the start: after a rebalance, tokens"
            " go to the weights of other experts",
            at=at,
            hint="turn EPLB and redundant experts off",
        )
