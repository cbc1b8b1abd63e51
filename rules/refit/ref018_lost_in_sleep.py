"""Sleeping changed what the engine holds, or released no memory.

## What it checks
- The engine sleeps while the trainer steps and wakes before the sync, as in jobs that share GPUs. Its parameters,
  buffers, derived tensors, and numbers on the host (the scales of an FP8 KV cache) are the same before and after.
- With `--set sleep-level=2` the engine drops its weights. The memory of the weights comes back before the sync, the
  memory of the cache after it, and the rule compares the buffers in between. REF001 to REF004 check the weights after
  the sync.
- The driver reports less memory in use on the engine's GPUs while it sleeps than before (a warning). The trainer computes nothing
  meanwhile.
- The rule is skipped, with the reason, on a platform that has no sleep.

## Why it matters
- A sync sends parameters only. Buffers that sleep dropped (rotary caches, scales) stay wrong for the rest of the job.
- A job that trains and samples on the same GPUs counts on that memory, and runs out of it in its first step.

## How to fix
- Sleep at a level that keeps buffers, or restart the engine.
- Start the engine so that it can sleep: vLLM with `enable_sleep_mode`, SGLang with `enable_memory_saver` and
  torch_memory_saver installed.

## When it can be wrong
- Some engines drop weights by design at level 1, because a sync follows.
- Another process may have taken as much memory on that GPU in the same moment.

## Seen in
vllm-project/vllm#29341 (buffers lost by sleep), sgl-project/sglang (static state of release_memory_occupation); SGLang 0.5.23
without torch_memory_saver: release_memory_occupation answers success and keeps the memory
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
    sleep = trace.sleep_check
    if sleep is None:
        raise Skip(trace.sleep_skipped)
    if names := sleep.changed_tensors:
        yield Problem(
            f"{count(len(names), 'tensor')} changed while the engine slept:"
            f" {join_truncated(names)}{describe_origin(trace, names)}",
            key=names[0],
            hint="a sync brings parameters back, and nothing else",
            names=tuple(names),
        )
    if numbers := sleep.changed_scalars:
        yield Problem(
            f"{count(len(numbers), 'number')} on the host changed while the engine slept: {join_truncated(numbers)}",
            key=numbers[0],
            hint="set them again after the wake, or have the engine process its weights",
            names=tuple(numbers),
        )
    if sleep.no_op_reason:
        raise Skip(sleep.no_op_reason)
    if sleep.freed_bytes <= 0:
        yield Problem(
            "the engine slept, and no memory of its devices became free",
            hint="start it with sleep mode (vLLM: enable_sleep_mode, SGLang: enable_memory_saver)",
            severity="warning",
        )
