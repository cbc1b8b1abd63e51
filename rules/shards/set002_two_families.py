"""Two sets of shards of one model are in the same folder.

## What it checks
Numbered shards with the same stem have the same total: `model-…-of-00002` beside `model-…-of-00004` are two saves in one
folder.

## Why it matters
Every program that globs the folder reads both: MLX, merge scripts and, without an index, vLLM and SGLang. Tensors of the
older save overwrite the newer ones, or stop the load with a wrong shape.

## How to fix
Delete the old set. The index names the current one; without an index, compare the dates of the files.

## When it can be wrong
A team may keep two saves in one folder on purpose and load with an index; transformers, vLLM and SGLang then load the right
one, and only programs that glob mix them. Move one, or use `--ignore SET002`. Two stems count as two different models: SET004
or IDX005 reports those. A newer save with the same total overwrites the older one, so nothing remains to be found.

## Seen in
unslothai/unsloth-zoo#808, mflux-community/mflux#603, Neph0s/CoSER#3
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint


@rule("SET002", "two-families", severity="error", when=lambda ckpt: bool(ckpt.shard_sets) and not ckpt.is_single_shard)
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    named = ckpt.index.shards if ckpt.index is not None and ckpt.index_decides else ()
    for stem in sorted({family.stem for family in ckpt.shard_sets}):
        families = [family for family in ckpt.shard_sets if family.stem == stem]
        if len(families) == 1 or all(name in named for family in families for name in family.files.values()):
            continue
        totals = " and ".join(str(family.total) for family in families)
        stale = [family for family in families if named and not any(name in named for name in family.files.values())]
        yield Problem(
            f"two saves are in one folder: sets of {totals} shards share the name {stem}; loaders that glob read both",
            file=next(iter((stale or families)[-1].files.values())),
            hint=f"delete the {len(stale[0].files)} shards of the set of {stale[0].total}: the index does not name them"
            if stale
            else "delete the set of the earlier save",
        )
