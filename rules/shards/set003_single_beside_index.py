"""The folder holds both a model.safetensors and an index that names other files.

## What it checks
If an index names existing shards, there is no `model.safetensors` that it does not name.

## Why it matters
transformers loads `model.safetensors` and never opens the index; vLLM and SGLang load what the index names. If one kind of
save was written over the other, the trainer and the engine use different weights.

## How to fix
Delete the older one: the single file, or the index with its shards.

## When it can be wrong
Both may hold the same values, for example if a tool merged the shards and kept them; then every engine serves the same model.
`ckptcheck diff` of the single file and the index shows whether they do. If your loader names explicitly what it opens, use
`--ignore SET003`.

## Seen in
huggingface/diffusers#14719, Blaizzy/mlx-vlm#1464, Blaizzy/mlx-vlm#1329
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.views import IndexedCheckpoint
from ckptcheck.text.formatting import count


@rule("SET003", "single-beside-index", severity="error", on="index", when=lambda ckpt: ckpt.index_decides)
def check(ckpt: IndexedCheckpoint) -> Iterator[Problem]:
    if "model.safetensors" in ckpt.files and "model.safetensors" not in ckpt.index.shards:
        yield Problem(
            f"transformers loads this file, vLLM and SGLang load the {count(len(ckpt.index.shards), 'shard')} "
            f"that {ckpt.index.file} names: two models in one folder",
            file="model.safetensors",
            hint="delete the one from the earlier save",
        )
