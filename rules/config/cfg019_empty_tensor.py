"""A tensor has no elements.

## What it checks
No tensor of the model or the adapter has a dimension of 0. Reward and value heads are HEAD002's.

## Why it matters
ZeRO-3 leaves tensors of shape [0] on every rank but the one that gathers them; a state dict saved from such a rank
has all names and few values. transformers stops with a size mismatch; tools that compare names only call it complete.

## How to fix
Gather the parameters before saving (`zero_to_fp32.py`, or `stage3_gather_16bit_weights_on_model_save`).

## When it can be wrong
Code of a model's own may store an empty buffer as a mark or a placeholder, and transformers loads it if the class
makes one of the same shape; `--ignore CFG019`. A partition that is too short but not empty is no finding here: CFG012
to CFG015 see it where the config gives the shape.

## Seen in
PhysRAG#3 (309 of 851 tensors), deepspeedai/DeepSpeed#6836, deepspeedai/DeepSpeed#7900
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.anatomy import SCORE
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.phrase import count, few


@rule("CFG019", "empty-tensor", severity="error", when=lambda ckpt: bool(ckpt.tensors))
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    empty: dict[str, list[str]] = {}
    for name, tensor in ckpt.tensors.items():
        if 0 in tensor.shape and not SCORE.search(name):
            empty.setdefault(ckpt.holders[name], []).append(name)
    for file, names in empty.items():
        yield Problem(
            f"{count(len(names), 'tensor has', 'tensors have')} no elements, as ZeRO-3 leaves them on ranks that did not "
            f"gather: {few(names)}",
            file=file,
            key=min(names),
            hint="gather the parameters before saving",
        )
