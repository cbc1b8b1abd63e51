"""A delta is sent, and the weights that it is a delta of are not named.

## What it checks
Where a job sends only what changed since the last update (a delta), it names the folder in which the engine keeps the weights that
deltas are applied to, and the folder through which they travel. It uses a transport and an engine that can apply them.

## Why it matters
- A delta is right on one base only. slime's and miles' default encoding (xor) gives other weights on any other base, and
  reverts itself when it is applied twice.
- slime and miles refuse a delta without these folders, with colocation, and over NCCL; verl applies deltas in SGLang only;
  NeMo-RL sends sparse updates only from Megatron, to an engine on other GPUs, with plain weights.

## How to fix
- slime: `--update-weight-mode delta --update-weight-transport disk --update-weight-disk-dir SHARED
  --update-weight-local-checkpoint-dir LOCAL`.
- miles: `--update-weight-transfer-mode disk-delta` with the same two folders, and `--hf-checkpoint` a local folder.
- NeMo-RL: `refit_transport: vllm_zmq_sparse` with `colocated.enabled: false` and `megatron_cfg.enabled: true`.

## When it can be wrong
No case is known.

## Seen in
THUDM/slime slime/utils/arguments.py (`--update-weight-mode=delta requires …`), radixark/miles miles/utils/arguments.py,
verl-project/verl verl/checkpoint_engine/base.py, NVIDIA-NeMo/RL nemo_rl/weight_sync/vllm_remote_sparse_weight_synchronizer.py
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.jobs.job import Job

FOLDERS = {
    "update.base": (
        "--update-weight-local-checkpoint-dir",
        "the engine has no folder with the weights that it is a delta of",
    ),
    "update.directory": ("--update-weight-disk-dir", "there is no folder through which it travels"),
}
"""Setting → the flag of slime and miles, and what is missing without it."""


@rule(
    "JOB047",
    "unnamed-delta-base",
    severity="error",
    on="job",
    when=lambda job: (
        job.text("update.mode") == "delta"
        or (job.text("update.transport") or "") in ("delta_sharded", "vllm_zmq_sparse", "vllm_s3_sparse")
    ),
)
def check(job: Job) -> Iterator[Problem]:
    at = "update.mode" if job["update.mode"].status == "set" else "update.transport"
    job.require_resolved("update.mode", "update.transport", "update.base", "update.directory", "engine.colocated")
    if job.flag("trainer.lora") and job.framework in ("slime", "miles", "SkyRL"):
        yield job.problem(
            f"updates are deltas ({job[at].place}), and the trainer trains an adapter ({job['trainer.lora'].place}): miles"
            " and SkyRL refuse the two together",
            at=at,
            hint="send whole weights",
        )
    if job.framework in ("slime", "miles"):
        yield from _check_slime(job)
    elif job.framework == "verl" and job.engine == "vllm":
        yield job.problem(
            f"updates are deltas, {job.describe('update.transport')}, and the engine is {job.describe('engine.name')}: verl applies"
            " deltas in SGLang only, and stops",
            at="update.transport",
            hint="use SGLang, or another checkpoint_engine.backend",
        )
    elif job.framework == "NeMo-RL":
        reasons = []
        if job["engine.colocated"].status == "set" and job.flag("engine.colocated"):
            reasons.append(f"the engine shares the trainer's GPUs ({job['engine.colocated'].place})")
        if job.text("trainer.backend") == "dtensor":
            reasons.append(f"the trainer is {job.describe('trainer.backend')}")
        if job.text("engine.quantization") == "fp8":
            reasons.append(f"the engine quantizes its weights ({job['engine.quantization'].place})")
        if (job.text("engine.kv_cache_dtype") or "").startswith("fp8"):
            reasons.append(f"the cache is {job.describe('engine.kv_cache_dtype')}")
        if reasons:
            yield job.problem(
                f"updates are deltas, {job.describe('update.transport')}, and {' and '.join(reasons)}: NeMo-RL refuses that",
                at="update.transport",
                hint="set refit_transport to null, or change that",
            )


def _check_slime(job: Job) -> Iterator[Problem]:
    """Yield what slime and miles refuse of a job that sends deltas."""
    if job.flag("engine.colocated"):
        yield job.problem(
            f"updates are deltas ({job['update.mode'].place}), and the engine shares the trainer's GPUs"
            f" ({job['engine.colocated'].place}): slime and miles refuse the two together",
            at="update.mode",
            hint="take --colocate or the delta out",
        )
    if job.text("update.transport") == "nccl":
        yield job.problem(
            f"updates are deltas ({job['update.mode'].place}), and they go over nccl ({job['update.transport'].place}): slime sends"
            " deltas over the disk only",
            at="update.mode",
            hint="set --update-weight-transport to disk",
        )
    if job.notes:
        return
    for name, (flag, missing) in FOLDERS.items():
        if job[name].status == "unknown":
            yield job.problem(
                f"updates are deltas ({job['update.mode'].place}), and {missing}: {flag} is not set, and the job stops",
                at="update.mode",
                hint=f"set {flag}",
            )
