"""A file of weights belongs to nothing that is loaded.

## What it checks
Every `.safetensors` file is named by the index, or is the model itself. Adapters, `consolidated` files (SET005), a second
set of shards (SET002), `value_head.safetensors` (LLaMA-Factory keeps a reward model's head there) and
`model.safetensors` beside an index (SET003) have rules of their own.

## Why it matters
Consumers disagree about it. vLLM and SGLang drop files that the index does not name, so weights of multi-token
prediction packaged this way are lost; loaders that glob (MLX) merge them into the model. Without an index vLLM and
SGLang merge too.

## How to fix
If the file belongs to the model, list it in the index; otherwise move it to a folder of its own.

## When it can be wrong
A file may lie there for a tool of its own: a draft head, a projector, an optimizer state, a copy that transformers
takes by its `variant`. With an index the engines leave it alone, and nobody is hurt; keep it elsewhere or `--ignore
SET004`. Subfolders are not looked at, and of the names that begin with `value_head`, `adapter_` and `consolidated`
nothing is said here.

## Seen in
sgl-project/sglang `maybe_add_mtp_safetensors` (baseten-admin/glm-4.7-fp4), ml-explore/mlx-swift-lm#408,
jundot/omlx#2062
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.checkpoint.shard_set import ORDINAL
from ckptcheck.phrase import count


@rule("SET004", "orphan-file", severity="warning", when=lambda ckpt: not ckpt.single and len(ckpt.shards) > 1)
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    stems = {match["stem"] for name in ckpt.loaded if (match := ORDINAL.fullmatch(name))}
    for name, shard in ckpt.shards.items():
        if name in ckpt.loaded or name.startswith(("consolidated", "adapter_", "value_head")):
            continue
        if (match := ORDINAL.fullmatch(name)) and match["stem"] in stems:
            continue
        if name == "model.safetensors" and ckpt.index_decides:
            continue
        what = f"its {count(len(shard.tensors), 'tensor')}" if shard.readable else "it"
        if ckpt.index is not None and ckpt.index_decides:
            who = "the index does not name this file: vLLM and SGLang leave it out, loaders that glob merge"
        else:
            who = "this file is no part of the model for transformers, but vLLM and SGLang merge"
        yield Problem(
            f"{who} {what}",
            file=name,
            hint="list it in the index if it belongs to the model, else move it to a folder of its own",
        )
