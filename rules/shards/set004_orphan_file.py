"""A file of weights is not part of what loaders load.

## What it checks
The index names every `.safetensors` file, or the file is the model itself. Adapters, `value_head.safetensors` (LLaMA-Factory
keeps a reward model's head there), `consolidated` files, a second set of shards and `model.safetensors` beside an index are
excluded: SET002 and the rules on adapters check them.

## Why it matters
Consumers disagree about such a file. vLLM and SGLang skip files that the index does not name, so weights of multi-token
prediction in a separate file are lost; loaders that glob (MLX) merge them into the model. Without an index, vLLM and SGLang
merge them too.

## How to fix
If the file belongs to the model, list it in the index; if not, move it to a folder of its own.

## When it can be wrong
A file may be there for another tool: a draft head, a projector, an optimizer state, a copy that transformers loads by its
`variant`. With an index the engines skip it, so it does no harm: move it elsewhere, or use `--ignore SET004`. Subfolders and
names that begin with `value_head`, `adapter_` or `consolidated` are not checked.

## Seen in
sgl-project/sglang `maybe_add_mtp_safetensors` (baseten-admin/glm-4.7-fp4), ml-explore/mlx-swift-lm#408, jundot/omlx#2062
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.checkpoint.shard_set import ORDINAL
from ckptcheck.text.formatting import count


@rule("SET004", "orphan-file", severity="warning", when=lambda ckpt: not ckpt.is_single_shard and len(ckpt.shards) > 1)
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    stems = {match["stem"] for name in ckpt.model_files if (match := ORDINAL.fullmatch(name))}
    for name, shard in ckpt.shards.items():
        if name in ckpt.model_files or name.startswith(("consolidated", "adapter_", "value_head")):
            continue
        if (match := ORDINAL.fullmatch(name)) and match["stem"] in stems:
            continue
        if name == "model.safetensors" and ckpt.index_decides:
            continue
        what = f"its {count(len(shard.tensors), 'tensor')}" if shard.readable else "it"
        if ckpt.index is not None and ckpt.index_decides:
            who = "the index does not name this file: vLLM and SGLang skip it, loaders that glob merge"
        else:
            who = "transformers does not load this file, but vLLM and SGLang merge"
        yield Problem(
            f"{who} {what}",
            file=name,
            hint="list it in the index if it belongs to the model; if not, move it to another folder",
            names=tuple(shard.tensors),
        )
