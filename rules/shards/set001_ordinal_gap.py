"""A numbered set of shards has a gap.

## What it checks
Files named `…-00002-of-00005.safetensors` are all there, counted from 0 or from 1, whichever the set uses. Numbers
that the index names are left to IDX001.

## Why it matters
Nothing else shows it: vLLM and SGLang glob the folder and start without the layers of the missing file.

## How to fix
Fetch or upload the missing file.

## When it can be wrong
Files that are numbered for another purpose count too when there is no index: one rank's share of an optimizer
(`optim-00000-of-00008.safetensors`) beside the model. So does a part of a model that was copied on purpose. `--ignore
SET001`. A set that is counted from 0 and lost its first file is said to lack its last: whether it counts from 0 shows
only in that file.

## Seen in
inferencerlabs/inferencer-feedback#306, JustVugg/colibri#1317
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.phrase import ranges


@rule("SET001", "ordinal-gap", severity="error", when=lambda ckpt: bool(ckpt.families) and not ckpt.single)
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    named = ckpt.index.shards if ckpt.index is not None and ckpt.index_decides else ()
    for family in ckpt.families:
        if named and not any(name in named for name in family.files.values()):
            continue  # a leftover of an earlier save: SET004
        missing = [
            number for number in family.expected if number not in family.files and family.name(number) not in named
        ]
        if missing:
            yield Problem(
                f"of {family.total} shards {len(family.files)} are there; missing: number {ranges(missing)}",
                file=family.name(missing[0]),
                hint="fetch the missing files again",
            )
