"""A numbered set of shards has a gap.

## What it checks
All files named like `…-00002-of-00005.safetensors` exist, counted from 0 or from 1 as the set does. IDX001 reports numbers
that the index names.

## Why it matters
No other check finds it: vLLM and SGLang glob the folder and start without the layers of the missing file.

## How to fix
Fetch or upload the missing file.

## When it can be wrong
Without an index, files that are numbered for another purpose count too: one rank's share of an optimizer
(`optim-00000-of-00008.safetensors`) beside the model. A part of a model that was copied on purpose fires as well. Use
`--ignore SET001` in both cases. If a set that counts from 0 lost its first file, the finding names the last one instead: only
the first file shows that the set counts from 0.

## Seen in
inferencerlabs/inferencer-feedback#306, JustVugg/colibri#1317
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.text.formatting import format_ranges


@rule("SET001", "ordinal-gap", severity="error", when=lambda ckpt: bool(ckpt.shard_sets) and not ckpt.is_single_shard)
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    named = ckpt.index.shards if ckpt.index is not None and ckpt.index_decides else ()
    for family in ckpt.shard_sets:
        if named and not any(name in named for name in family.files.values()):
            # SET004 reports the remains of an earlier save.
            continue
        missing = [
            number for number in family.expected if number not in family.files and family.name(number) not in named
        ]
        if missing:
            yield Problem(
                f"{len(family.files)} of {family.total} shards exist; missing: number {format_ranges(missing)}",
                file=family.name(missing[0]),
                hint="fetch the missing files again",
            )
