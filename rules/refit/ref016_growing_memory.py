"""Every sync takes memory and keeps it.

## What it checks
After the last sync the engine holds no more memory than after the cold load, up to an eighth of its weights and 64 MB.

## Why it matters
A job syncs thousands of times.

## How to fix
Find who keeps the buckets; on a GPU, empty the cache of the allocator after the update.

## When it can be wrong
Two syncs are few: an allocator may keep what it was given once, and never ask again.

## Seen in
vLLM and SGLang reports of growing memory after repeated updates
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.phrase import size
from ckptcheck.refit.trace import RefitTrace


@rule(
    "REF016",
    "growing-memory",
    severity="warning",
    on="refit",
    when=lambda trace: len(trace.memory) > 1 and len(trace.syncs) > 1,
)
def check(trace: RefitTrace) -> Iterator[Problem]:
    weights = sum(entry.nbytes for entry in trace.cold.values())
    grown = trace.memory[-1] - trace.memory[0]
    if grown > weights / 8 + (64 << 20) and grown > len(trace.syncs) * weights / 8:
        yield Problem(f"the engine grew by {size(grown)} over {len(trace.syncs)} syncs of {size(weights)}")
