"""The index belongs to another set of shards.

## What it checks
At least one of the files that the index names exists. When none does although there are other shards, the index was
left over from an earlier save or upload.

## Why it matters
vLLM, SGLang and every loader that follows the index stop at the first missing file although the model itself is
whole; so does transformers, unless there is a `model.safetensors`. Download tools take the folder for an interrupted
download.

## How to fix
`ckptcheck scan --fix` writes the index anew where the shards are a whole set. Beside a single `model.safetensors` no
index is needed: delete it.

## When it can be wrong
transformers takes a single `model.safetensors` without opening the index, so with that and transformers alone nobody
is hurt: `--ignore IDX006`. An index of another name is passed over beside such a file, as loaders pass it over. As
soon as one of the named files exists, the others are IDX001's, even when they belong to another save.

## Seen in
jundot/omlx#2432, Blaizzy/mlx-vlm#1827, Neph0s/CoSER#3, huggingface/diffusers#14719
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.phrase import count, few


@rule("IDX006", "stale-index", severity="error", when=lambda ckpt: ckpt.has_index)
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    if ckpt.index is not None and ckpt.index_is_stale:
        single = ckpt.loaded == ("model.safetensors",)
        yield Problem(
            f"the index is stale: none of the {count(len(ckpt.index.shards), 'file')} it names is there, "
            f"while {few(ckpt.loaded)} {'is' if len(ckpt.loaded) == 1 else 'are'}",
            file=ckpt.index.file,
            key="weight_map",
            hint="delete it: a single model.safetensors needs no index"
            if single
            else "ckptcheck scan --fix writes it anew from the headers",
        )
