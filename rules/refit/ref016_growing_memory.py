"""Every sync takes memory and keeps it.

## What it checks
After the last sync the engine holds no more memory than after the first, up to 64 MB and an eighth of its weights for each sync
between. The first one may set up what stays: buffers, a process group.

## Why it matters
A job syncs thousands of times.

## How to fix
Find who keeps the buckets; on a GPU, empty the cache of the allocator after the update.

## When it can be wrong
Few syncs tell little: an allocator may keep what it was given once, and never ask again. `--steps 4` tells more.

## Seen in
vLLM and SGLang reports of growing memory after repeated updates
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.phrase import count, size
from ckptcheck.refit.trace import RefitTrace

ALWAYS = 64 << 20
"""Bytes that allocators keep or give back as they like."""


@rule("REF016", "growing-memory", severity="warning", on="refit", when=lambda trace: len(trace.memory) > 2)
def check(trace: RefitTrace) -> Iterator[Problem]:
    weights = sum(entry.nbytes for entry in trace.cold.values())
    _, first, *later = trace.memory
    grown = later[-1] - first
    if grown > max(ALWAYS, len(later) * weights / 8):
        yield Problem(
            f"the engine grew by {size(grown)} from the first sync to the last, over {count(len(later), 'sync')} of {size(weights)}"
        )
