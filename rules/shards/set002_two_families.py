"""Two sets of shards of one model lie in one folder.

## What it checks
Numbered shards of one stem have one total: `model-…-of-00002` beside `model-…-of-00004` are two saves in one folder.

## Why it matters
Whatever globs the folder reads both: MLX, merge scripts and, without an index, vLLM and SGLang; tensors of the older
save overwrite the newer ones or stop the load with a wrong shape.

## How to fix
Delete the set that is left over. The index tells which one is current; without it, the files' dates may.

## When it can be wrong
Somebody may keep two saves in one folder on purpose and load by an index; transformers, vLLM and SGLang then load the
right one, and only what globs mixes them. Move one, or `--ignore SET002`. Saves under two stems are taken for two
things: SET004 or IDX005 sees those. A newer save of the same total overwrites the older one, and leaves nothing to
see.

## Seen in
unslothai/unsloth-zoo#808, mflux-community/mflux#603, Neph0s/CoSER#3
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint


@rule("SET002", "two-families", severity="error", when=lambda ckpt: bool(ckpt.families) and not ckpt.single)
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    named = ckpt.index.shards if ckpt.index is not None and ckpt.index_decides else ()
    for stem in sorted({family.stem for family in ckpt.families}):
        families = [family for family in ckpt.families if family.stem == stem]
        if len(families) == 1 or all(name in named for family in families for name in family.files.values()):
            continue
        totals = " and ".join(str(family.total) for family in families)
        stale = [family for family in families if named and not any(name in named for name in family.files.values())]
        yield Problem(
            f"two saves lie in one folder: shards of sets of {totals} share the name {stem}; loaders that glob read both",
            file=next(iter((stale or families)[-1].files.values())),
            hint=f"delete the {len(stale[0].files)} shards of the set of {stale[0].total}: the index does not name them"
            if stale
            else "delete the set that is left over",
        )
