"""A model.safetensors lies beside an index that names other files.

## What it checks
Where an index names shards that are there, no `model.safetensors` that it does not name lies beside it.

## Why it matters
transformers takes `model.safetensors` and never opens the index; vLLM and SGLang take what the index names. After a
save of one kind over the other, the trainer and the engine compute with different weights.

## How to fix
Delete whichever is left over: the single file, or the index with its shards.

## When it can be wrong
Both may hold the same values, for example where a tool merged the shards and left them; then every engine serves the
same model. `ckptcheck diff` of the single file and the folder's index tells. If a loader of yours is told explicitly
what to open, `--ignore SET003`.

## Seen in
huggingface/diffusers#14719, Blaizzy/mlx-vlm#1464, Blaizzy/mlx-vlm#1329
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.phrase import count


@rule("SET003", "single-beside-index", severity="error", when=lambda ckpt: ckpt.index_decides)
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    assert ckpt.index is not None
    if "model.safetensors" in ckpt.files and "model.safetensors" not in ckpt.index.shards:
        yield Problem(
            f"transformers loads this file, vLLM and SGLang load the {count(len(ckpt.index.shards), 'shard')} "
            f"that {ckpt.index.file} names: two models in one folder",
            file="model.safetensors",
            hint="delete the one that is left over",
        )
