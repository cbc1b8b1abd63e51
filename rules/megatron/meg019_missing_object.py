"""Shards of an object are missing.

## What it checks
Megatron writes an object that is spread over a grid as `KEY/shard_POSITION_GRID`: the `_extra_state` of each layer and
expert, the states of random generators. Every position of the grid exists.

## Why it matters
Megatron compares the shards it needs with the existing ones and stops: "Invalid access pattern: 24 ShardedObject are
missing". A missing `_extra_state` of an FP8 layer means lost scales.

## How to fix
Save again with all ranks. If only `_extra_state` is missing, `--dist-ckpt-strictness log_unexpected` loads without it.

## When it can be wrong
Tools that copy only weights omit such objects on purpose, but then usually all of them. `--ignore MEG019` silences it.

## Seen in
NVIDIA-NeMo/Megatron-Bridge#1210
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.megatron.megatron import DcpCheckpoint
from ckptcheck.checkpoint.megatron.structure import missing_objects
from ckptcheck.text.formatting import count, join_truncated

HINT = (
    "save again with all ranks, or use an earlier iteration; if they are _extra_state alone, and of no FP8 layer, Megatron loads"
    " without them under --dist-ckpt-strictness log_unexpected"
)


@rule(
    "MEG019",
    "missing-object",
    severity="error",
    on="dcp",
)
def check(run: DcpCheckpoint) -> Iterator[Problem]:
    missing = missing_objects(run.contents.objects)
    for base, (total, places) in list(missing.items())[:3]:
        yield Problem(
            f"{count(len(places), 'shard')} of {total} {'is' if len(places) == 1 else 'are'} missing ({join_truncated(places)})",
            file=run.file(".metadata"),
            key=base,
            hint=HINT,
        )
    if len(missing) > 3:
        yield Problem(
            f"{count(len(missing) - 3, 'more object lacks', 'more objects lack')} shards: {join_truncated(list(missing)[3:])}",
            file=run.file(".metadata"),
            hint=HINT,
        )
