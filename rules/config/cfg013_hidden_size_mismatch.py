"""The model's tensors are of another width than the config declares.

## What it checks
The token embedding, a stored head and the layers' norms are `hidden_size` wide.

## Why it matters
transformers stops with a size mismatch, vLLM and SGLang with an assertion or a shape error in the first matrix
product.

## How to fix
Take the config of this model; it is probably that of a sibling of another size.

## When it can be wrong
An embedding or head of another width that is projected to `hidden_size` is legal where the architecture says so; the
settings ALBERT, OPT-350m, ELECTRA and others have for it are known. Another name for it fires: `--ignore CFG013`. In
a layer only the two common norms are looked at, and tensors of the right width say nothing about the rest.

## Seen in
verl-project/verl#7610 (buffers concatenated over ranks)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.checkpoint.config import HIDDEN
from ckptcheck.phrase import ranges, shape

NORMS = ("input_layernorm.weight", "post_attention_layernorm.weight")
FACTORED = (
    "embedding_size",
    "word_embed_proj_dim",
    "embedding_dim",
    "emb_dim",
    "input_embedding_size",
    "d_embed",
    "encoder_hidden_size",
)
"""Settings of architectures whose embedding is narrower than the model (ALBERT, OPT-350m, ELECTRA, …)."""


@rule(
    "CFG013",
    "hidden-size-mismatch",
    severity="error",
    when=lambda ckpt: ckpt.config is not None and bool(ckpt.anatomy.layers) and not ckpt.is_partial,
)
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    anatomy, config = ckpt.anatomy, ckpt.config
    assert config is not None
    assert anatomy.stack is not None
    width = config.integer(*HIDDEN)
    if width is None:
        return
    if all(config.get(name) in (None, width) for name in FACTORED):
        # Heads called otherwise may be wider than the model by design (Reformer's reads two streams).
        head = anatomy.head if (anatomy.head or "").endswith("lm_head.weight") else None
        for name in (anatomy.embedding, head):
            if (
                name
                and ckpt.tensors[name].dtype.endswith(("F16", "F32", "F64"))
                and ckpt.tensors[name].shape[1] != width
            ):
                yield Problem(
                    f"its shape is {shape(ckpt.tensors[name].shape)}, but {config.key(*HIDDEN)} is {width}",
                    file=ckpt.holders[name],
                    key=name,
                    hint="take the config of this model",
                )
    for norm in NORMS:
        odd: dict[tuple[int, ...], list[int]] = {}
        for layer, names in anatomy.layers.items():
            found = ckpt.tensors.get(anatomy.stack.name(layer, norm)) if norm in names else None
            if found is not None and found.shape != (width,):
                odd.setdefault(found.shape, []).append(layer)
        for found_shape, layers in odd.items():
            name = anatomy.stack.name(layers[0], norm)
            yield Problem(
                f"in layers {ranges(layers)} {norm} has the shape {shape(found_shape)}, but {config.key(*HIDDEN)} is {width}",
                file=ckpt.holders[name],
                key=name,
                hint="take the config of this model; a multiple of the width is a tensor concatenated over ranks",
            )
