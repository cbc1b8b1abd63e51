"""The index belongs to another set of shards.

## What it checks
At least one of the files that the index names exists. If none does although there are other shards, the index remains from an
earlier save or upload.

## Why it matters
vLLM, SGLang and every loader that follows the index stop at the first missing file although the model itself is complete; so
does transformers, unless there is a `model.safetensors`. Download tools treat the folder as an interrupted download.

## How to fix
`ckptcheck scan --fix` writes the index again if the shards are a complete set. Beside a single `model.safetensors` no index
is needed: delete it.

## When it can be wrong
transformers loads a single `model.safetensors` without opening the index: use `--ignore IDX006` if only transformers loads
the model. An index of another name is ignored beside such a file, as loaders ignore it. If one of the named files exists,
IDX001 reports the others, even if they belong to another save.

## Seen in
jundot/omlx#2432, Blaizzy/mlx-vlm#1827, Neph0s/CoSER#3, huggingface/diffusers#14719
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.text.formatting import count, join_truncated


@rule("IDX006", "stale-index", severity="error", when=lambda ckpt: ckpt.has_index)
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    if ckpt.index is not None and ckpt.index_is_stale:
        single = ckpt.model_files == ("model.safetensors",)
        yield Problem(
            f"the index is stale: none of the {count(len(ckpt.index.shards), 'file')} it names exists, "
            f"while {join_truncated(ckpt.model_files)} {'does' if len(ckpt.model_files) == 1 else 'do'}",
            file=ckpt.index.file,
            key="weight_map",
            hint="delete it: a single model.safetensors needs no index"
            if single
            else "ckptcheck scan --fix writes it again from the headers",
        )
