"""The reward or value head has no elements.

## What it checks
No tensor of a reward, value or classification head has a dimension of 0.

## Why it matters
ZeRO-3 and pipeline stages leave an empty tensor where another rank holds the values. transformers and vLLM stop with a size
mismatch; TRL's wrapper loads it and predicts nothing.

## How to fix
Gather the parameters before saving.

## When it can be wrong
Your own code may keep an empty part on purpose, such as a bias over no labels; otherwise an empty head is never right. The
VAL rules check heads that are zero, constant or never trained.

## Seen in
hiyouga/LlamaFactory#9369, Open-Reasoner-Zero#63
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.text.formatting import format_shape


@rule("HEAD002", "empty-score-head", severity="error", when=lambda ckpt: bool(ckpt.components.score_head_tensors))
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    for name in ckpt.components.score_head_tensors:
        if 0 in ckpt.tensors[name].shape:
            yield Problem(
                f"the head has the shape {format_shape(ckpt.tensors[name].shape)}: no elements",
                file=ckpt.tensor_to_file[name],
                key=name,
                hint="gather the parameters before saving",
            )
