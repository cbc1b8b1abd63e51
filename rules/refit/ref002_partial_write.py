"""The sync wrote only a part of a tensor of the engine.

## What it checks
- After the first sync, no element of a parameter still holds a mark from before the sync.
- No element lies in memory that was allocated and never written.

## Why it matters
- Engines fuse tensors that checkpoints keep apart. When k_proj is missing, vLLM leaves that part of qkv_proj to
  whatever was in memory.
- vLLM still reports qkv_proj as loaded, so a list of loaded names cannot show the fault.

## How to fix
- Send all parts of the fused tensor.
- Some loaders drop one half when a bucket boundary lies between the parts: use larger buckets, or update the engine.

## When it can be wrong
- Padding that no checkpoint fills and no kernel reads keeps its marks.

## Seen in
sgl-project/sglang#38298 (halves that straddle a bucket), vllm-project/vllm#50523
"""

from collections.abc import Iterator

from ckptcheck import Problem, Skip, rule
from ckptcheck.refit.trace import RefitTrace
from ckptcheck.refit.trace_queries import why_not_scrambled
from ckptcheck.refit.weight_names import describe_origin
from ckptcheck.text.formatting import count, format_ranges, join_truncated


@rule(
    "REF002",
    "partial-write",
    severity="error",
    on="refit",
    when=lambda trace: any(sync.manifest for sync in trace.syncs),
)
def check(trace: RefitTrace) -> Iterator[Problem]:
    partial = {
        key: part
        for key, part in trace.syncs[0].unwritten_parts.items()
        if part.sentinel_count < part.total and (part.sentinel_count or part.nan_count)
    }
    reported: set[str] = set()
    engine_ranks = trace.engine.ranks if trace.engine is not None else 1
    for rank in sorted({rank for rank, _ in partial}):
        names = sorted({name for other, name in partial if other == rank} - reported)
        # every tensor of this rank was reported with an earlier rank
        if not names:
            continue
        reported.update(names)
        same_ranks = sorted(other for other, name in partial if name == names[0])
        first = partial[rank, names[0]]
        unwritten = first.sentinel_count + first.nan_count
        spans = [*first.sentinel_ranges, *first.nan_ranges]
        ranges = ", ".join(f"{begin:,} to {end - 1:,}" for begin, end in spans[:3])
        message = f"{unwritten:,} of {first.total:,} elements were not written ({ranges})"
        message += describe_origin(trace, names[:1], spans, first.total)
        if len(names) > 1:
            message += f"; and parts of {count(len(names) - 1, 'other tensor')}: {join_truncated(names[1:])}"
        if engine_ranks > 1:
            message += f"; on rank{'s' if len(same_ranks) > 1 else ''} {format_ranges(same_ranks)} of {engine_ranks}"
        yield Problem(message, key=names[0], hint="send every part of what the engine fuses, in one update")
    if reason := why_not_scrambled(trace):
        raise Skip(reason)
