"""Every sync takes memory of the engine and does not give it back.

## What it checks
- From the first sync to the last, the engine's memory grows by at most 64 MB, or by an eighth of its weights per sync
  if that is more.
- The first sync does not count: it may set up what stays, such as buffers or a process group.

## Why it matters
- A job syncs thousands of times.

## How to fix
- Find what keeps the buckets. On a GPU, empty the allocator's cache after the update.

## When it can be wrong
- Few syncs show little: an allocator may keep memory once and never ask for more. `--steps 4` shows more.

## Seen in
sgl-project/sglang#4446 (tensors of every update stay under tensor parallelism), vllm-project/vllm#52950 (2 GiB for each packed
transfer)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.live.refit.trace import RefitTrace
from ckptcheck.text.formatting import count, format_bytes

ALWAYS = 64 << 20
"""Bytes that allocators keep or give back as they like."""


@rule("REF016", "growing-memory", severity="warning", on="refit", when=lambda trace: len(trace.memory) > 2)
def check(trace: RefitTrace) -> Iterator[Problem]:
    weight_bytes = sum(entry.nbytes for entry in trace.cold_manifest.values())
    _, first, *later = trace.memory
    growth = later[-1] - first
    if growth > max(ALWAYS, len(later) * weight_bytes / 8):
        yield Problem(
            f"the engine's memory grew by {format_bytes(growth)} from the first sync to the last, over"
            f" {count(len(later), 'sync')} of {format_bytes(weight_bytes)}"
        )
