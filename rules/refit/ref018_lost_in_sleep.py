"""What the engine held before it slept is not what it holds after it woke.

## What it checks
The engine sleeps while the trainer steps, and wakes before the sync, as in jobs that share GPUs. Parameters, buffers and derived
tensors are then what they were. With `--sleep-level 2` the weights are dropped: their memory comes back before the sync, that
of the cache after it, and buffers are compared in between (the weights after the sync, by REF001 to REF004). Where the platform
has no sleep, the rule is skipped and says so.

## Why it matters
A sync sends parameters only. Buffers (rotary caches, scales) that sleep dropped stay wrong for the rest of the job.

## How to fix
Sleep at a level that keeps buffers, or restart the engine.

## When it can be wrong
Engines that drop weights by design at level 1, because a sync follows.

## Seen in
vllm-project/vllm#29341 (buffers lost by sleep), sgl-project/sglang (static state of release_memory_occupation)
"""

from collections.abc import Iterator

from ckptcheck import Problem, Skip, rule
from ckptcheck.phrase import few
from ckptcheck.refit.names import origin
from ckptcheck.refit.trace import RefitTrace


@rule(
    "REF018",
    "lost-in-sleep",
    severity="error",
    on="refit",
    when=lambda trace: trace.nap is not None or bool(trace.awake),
)
def check(trace: RefitTrace) -> Iterator[Problem]:
    if trace.nap is None:
        raise Skip(trace.awake)
    if names := trace.nap.lost:
        said = "1 tensor is not what it was" if len(names) == 1 else f"{len(names):,} tensors are not what they were"
        yield Problem(
            f"{said} before the engine slept: {few(names)}{origin(trace, names)}",
            key=names[0],
            hint="a sync brings parameters back, and nothing else",
        )
    elif trace.nap.idle:
        raise Skip(trace.nap.idle)
