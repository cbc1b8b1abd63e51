"""Shards of an object are missing.

## What it checks
Megatron writes an object that is spread over a grid as `KEY/shard_PLACE_GRID`: `_extra_state` of each layer and expert,
states of random generators. Of each, every place of its grid is there.

## Why it matters
Megatron compares what it asks for with what is there and stops: "Invalid access pattern: 24 ShardedObject are missing".
Missing `_extra_state` of FP8 layers means lost scales.

## How to fix
Save again with all ranks; for `_extra_state` alone, loading with `--dist-ckpt-strictness log_unexpected` passes over it.

## When it can be wrong
Tools that copy only weights leave some out on purpose; then usually all. `--ignore MEG019` silences it.

## Seen in
NVIDIA-NeMo/Megatron-Bridge#1210
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.megatron.run import Megatron
from ckptcheck.checkpoint.megatron.structure import missing_objects
from ckptcheck.phrase import count, few


@rule(
    "MEG019",
    "missing-object",
    severity="error",
    on="megatron",
    when=lambda run: run.form == "torch_dist" and run.contents is not None,
)
def check(run: Megatron) -> Iterator[Problem]:
    assert run.contents is not None
    lost = missing_objects(run.contents.objects)
    for base, (total, places) in list(lost.items())[:3]:
        yield Problem(
            f"{count(len(places), 'shard')} of {total} {'is' if len(places) == 1 else 'are'} missing ({few(places)})",
            file=run.file(".metadata"),
            key=base,
            hint="save again with all ranks",
        )
    if len(lost) > 3:
        yield Problem(
            f"{count(len(lost) - 3, 'more object lacks', 'more objects lack')} shards: {few(list(lost)[3:])}",
            file=run.file(".metadata"),
        )
