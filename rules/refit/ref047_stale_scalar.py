"""A number that the engine keeps on the host is not the one that a cold load makes.

## What it checks
- The modules of an engine keep numbers on the host, outside of any tensor: the scales of an FP8 KV cache
  (`_k_scale_float` in vLLM, `k_scale_float` in SGLang), products of scales that the first forward pass makes
  (`bmm1_scale`), the scale of the logits, the epsilon of a norm.
- After every sync, each of them equals what the same engine has after a cold load of the same weights and a forward
  pass. NaN equals NaN.
- The rule leaves out numbers that a forward pass changes. An integer is only reported if it also changed since the
  engine was started, as a warning.

## Why it matters
- Kernels read the number and not the tensor. The tensor is right, every checksum agrees, and attention is scaled by
  the value of an earlier step.

## How to fix
- Use the update call that processes weights after the load, which sets the number again.
- If no call sets it, set the attribute yourself after each update, or restart the engine.

## When it can be wrong
- A float that depends on the process (a time) and not on the weights: `--ignore REF047`.

## Seen in
ai-dynamo/modelexpress#783 (host copies of FP8 attention scales stay old), vllm-project/vllm#48310 (a wake sets
calibrated scales to 1.0), NVIDIA-NeMo/RL#3225
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.live.refit.observations import Sync
from ckptcheck.live.refit.trace import RefitTrace
from ckptcheck.live.refit.trace_queries import differing_scalars, scalars_before_step
from ckptcheck.live.refit.weight_names import describe_ranks
from ckptcheck.text.formatting import count, join_truncated


@rule(
    "REF047",
    "stale-scalar",
    severity="error",
    on="refit",
    when=lambda trace: any(sync.reference_scalars for sync in trace.syncs),
)
def check(trace: RefitTrace) -> Iterator[Problem]:
    for sync in trace.syncs:
        differing = differing_scalars(trace, sync)
        for is_integer in (False, True):
            group = {key: pair for key, pair in differing.items() if isinstance(pair[1], int) is is_integer}
            if not group:
                continue
            by_name = {name: pair for (_, name), pair in reversed(group.items())}
            names = sorted(by_name)
            values = [f"{name} is {_describe(*by_name[name])}" for name in names]
            subject = "" if len(names) == 1 else f"{count(len(names), 'number')} on the host are wrong: "
            yield Problem(
                f"after sync {sync.number}, {subject}{join_truncated(values)}{_describe_cause(trace, sync, group)}"
                f"{describe_ranks(trace, group)}",
                key=names[0],
                severity="warning" if is_integer else None,
                hint="have the engine process its weights after the load, which makes these numbers; a restart does too",
            )
        if differing:
            return


def _describe(value: float | None, cold: float) -> str:
    return f"{'gone' if value is None else f'{value:g}'} (a cold load makes it {cold:g})"


def _describe_cause(trace: RefitTrace, sync: Sync, group: dict[tuple[int, str], tuple[float | None, float]]) -> str:
    """Say what is known of the numbers: they are those of before the step, or the tensors beside them are right."""
    before = scalars_before_step(trace, sync)
    is_old = all(value is not None and before.get(key) == value for key, (value, _) in group.items())
    old = "; that is the value from before the step" if is_old else ""
    tensors = set()
    for rank, name in group:
        module, _, attribute = name.rpartition(".")
        own = [key for key in sync.manifest if key[0] == rank and key[1].rpartition(".")[0] == module]
        beside = [key for key in own if attribute.startswith(key[1].rpartition(".")[2])]
        tensors |= {key[1] for key in beside if key not in sync.differing_tensors and key in sync.reference}
    right = f"; {join_truncated(sorted(tensors))} {'is' if len(tensors) == 1 else 'are'} right" if tensors else ""
    return old + right
