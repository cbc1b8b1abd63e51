"""The sleep of the engine released no memory.

## What it checks
- The driver reports less memory in use on the engine's GPUs after it was put to sleep than before. The trainer computes
  nothing meanwhile.
- The rule is skipped, with the reason, where the engine cannot sleep.

## Why it matters
- A job that trains and samples on the same GPUs counts on that memory, and runs out of it in its first step.

## How to fix
- Start the engine so that it can sleep: vLLM with `enable_sleep_mode`, SGLang with `enable_memory_saver` and
  torch_memory_saver installed.

## When it can be wrong
- Another process may have taken as much memory on that GPU in the same moment.

## Seen in
SGLang 0.5.23 without torch_memory_saver: release_memory_occupation answers success and keeps the memory
"""

from collections.abc import Iterator

from ckptcheck import Problem, Skip, rule
from ckptcheck.live.refit.trace import RefitTrace


@rule(
    "REF067",
    "sleepless-memory",
    severity="warning",
    on="refit",
    when=lambda trace: trace.sleep_check is not None or bool(trace.sleep_skipped),
)
def check(trace: RefitTrace) -> Iterator[Problem]:
    if trace.sleep_check is None or trace.sleep_check.no_op_reason:
        raise Skip(trace.sleep_skipped if trace.sleep_check is None else trace.sleep_check.no_op_reason)
    if trace.sleep_check.freed_bytes <= 0:
        yield Problem(
            "the engine slept, and no memory of its devices became free",
            hint="start it with sleep mode (vLLM: enable_sleep_mode, SGLang: enable_memory_saver)",
        )
