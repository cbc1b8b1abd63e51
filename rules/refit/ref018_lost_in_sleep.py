"""Sleeping changed what the engine holds.

## What it checks
- The engine sleeps while the trainer steps and wakes before the sync, as in jobs that share GPUs. Its parameters,
  buffers, derived tensors, and numbers on the host (the scales of an FP8 KV cache) are the same before and after.
- With `--set sleep-level=2` the engine drops its weights. The memory of the weights comes back before the sync, the
  memory of the cache after it, and the rule compares the buffers in between. REF001 to REF004 check the weights after
  the sync.
- The rule is skipped, with the reason, on a platform that has no sleep.

## Why it matters
- A sync sends parameters only. Buffers that sleep dropped (rotary caches, scales) stay wrong for the rest of the job.

## How to fix
- Sleep at a level that keeps buffers, or restart the engine.

## When it can be wrong
- Some engines drop weights by design at level 1, because a sync follows.

## Seen in
vllm-project/vllm#29341 (buffers lost by sleep), sgl-project/sglang (static state of release_memory_occupation)
"""

from collections.abc import Iterator

from ckptcheck import Problem, Skip, rule
from ckptcheck.live.refit.trace import RefitTrace
from ckptcheck.live.refit.weight_names import describe_origin
from ckptcheck.text.formatting import count, join_truncated


@rule(
    "REF018",
    "lost-in-sleep",
    severity="error",
    on="refit",
    when=lambda trace: trace.sleep_check is not None or bool(trace.sleep_skipped),
)
def check(trace: RefitTrace) -> Iterator[Problem]:
    if trace.sleep_check is None:
        raise Skip(trace.sleep_skipped)
    if names := trace.sleep_check.changed_tensors:
        yield Problem(
            f"{count(len(names), 'tensor')} changed while the engine slept:"
            f" {join_truncated(names)}{describe_origin(trace, names)}",
            key=names[0],
            hint="a sync brings parameters back, and nothing else",
            names=tuple(names),
        )
    if numbers := trace.sleep_check.changed_scalars:
        yield Problem(
            f"{count(len(numbers), 'number')} on the host changed while the engine slept: {join_truncated(numbers)}",
            key=numbers[0],
            hint="set them again after the wake, or have the engine process its weights",
            names=tuple(numbers),
        )
    if not names and not numbers and trace.sleep_check.no_op_reason:
        raise Skip(trace.sleep_check.no_op_reason)
