"""A tensor of the engine was written in part.

## What it checks
No parameter holds marks in some of its elements after the first sync, and none holds memory that was never written.

## Why it matters
Engines fuse what checkpoints hold apart. When k_proj is missing, vLLM leaves that part of qkv_proj to whatever was in memory, and
still reports qkv_proj as loaded; a list of loaded names cannot show it.

## How to fix
Send all parts of the fused tensor. Where buckets cut between them, some loaders drop one half: use larger buckets, or update.

## When it can be wrong
Padding that no checkpoint fills, and that a kernel never reads, keeps its marks.

## Seen in
sgl-project/sglang#38298 (halves that straddle a bucket), vllm-project/vllm#50523
"""

from collections.abc import Iterator

from ckptcheck import Problem, Skip, rule
from ckptcheck.phrase import count, few, ranges
from ckptcheck.refit.names import origin
from ckptcheck.refit.trace import RefitTrace
from ckptcheck.refit.unseen import unmarked


@rule(
    "REF002",
    "partial-write",
    severity="error",
    on="refit",
    when=lambda trace: any(sync.manifest for sync in trace.syncs),
)
def check(trace: RefitTrace) -> Iterator[Problem]:
    part = {
        key: left
        for key, left in trace.syncs[0].leftovers.items()
        if left.count < left.total and (left.count or left.blank)
    }
    told: set[str] = set()
    of = trace.engine.ranks if trace.engine is not None else 1
    for rank in sorted({rank for rank, _ in part}):
        names = sorted({name for place, name in part if place == rank} - told)
        if not names:  # as on a rank before
            continue
        told.update(names)
        alike = sorted(place for place, name in part if name == names[0])
        first = part[rank, names[0]]
        missing = first.count + first.blank
        runs = [*first.ranges, *first.blanks][:3]
        where = ", ".join(f"{begin:,} to {end - 1:,}" for begin, end in runs)
        yield Problem(
            f"{missing:,} of {first.total:,} elements were not written ({where})"
            + origin(trace, names[:1], [*first.ranges, *first.blanks], first.total)
            + (f"; and parts of {count(len(names) - 1, 'other tensor')}: {few(names[1:])}" if len(names) > 1 else "")
            + (f"; on rank{'s' if len(alike) > 1 else ''} {ranges(alike)} of {of}" if of > 1 else ""),
            key=names[0],
            hint="send every part of what the engine fuses, in one update",
        )
    if why := unmarked(trace):
        raise Skip(why)
