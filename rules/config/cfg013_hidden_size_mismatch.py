"""Tensors do not have the hidden_size that the config declares.

## What it checks
The token embedding, a stored head and the layers' norms are `hidden_size` wide.

## Why it matters
transformers stops with a size mismatch, vLLM and SGLang with an assertion or a shape error in the first matrix product.

## How to fix
Use the config of this model; the present one probably belongs to another size of the family.

## When it can be wrong
An architecture may project an embedding or head of another width to `hidden_size`. The settings of ALBERT, OPT-350m, ELECTRA
and others for this are known; another setting fires: use `--ignore CFG013`. In a layer only the two common norms are checked;
tensors of the right width do not prove that the others are right.

## Seen in
verl-project/verl#7610 (buffers concatenated over ranks)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.config import HIDDEN, Config
from ckptcheck.checkpoint.layout import Stack
from ckptcheck.checkpoint.views import ConfiguredCheckpoint
from ckptcheck.text.formatting import format_layers, format_shape

NORMS = ("input_layernorm.weight", "post_attention_layernorm.weight")
FACTORED = (
    "embedding_size",
    "word_embed_proj_dim",
    "embedding_dim",
    "emb_dim",
    "input_embedding_size",
    "d_embed",
    "encoder_hidden_size",
    "backbone_hidden_size",
)
"""Settings of architectures whose embedding is narrower than the model (ALBERT, OPT-350m, ELECTRA, …), or wider (CSM)."""


@rule(
    "CFG013",
    "hidden-size-mismatch",
    severity="error",
    on="config",
    when=lambda ckpt: bool(ckpt.components.layers) and ckpt.components.is_language_model and not ckpt.is_partial,
)
def check(ckpt: ConfiguredCheckpoint) -> Iterator[Problem]:
    anatomy, config = ckpt.components, ckpt.config
    width = config.number(*HIDDEN)
    if width is None or anatomy.stack is None or _is_of_another_part(config, anatomy.stack):
        return
    if all(config.get(name) in (None, width) for name in FACTORED):
        # Heads called otherwise may be wider than the model by design (Reformer's reads two streams).
        head = anatomy.lm_head if (anatomy.lm_head or "").endswith("lm_head.weight") else None
        for name in (anatomy.embedding, head):
            if (
                name
                and ckpt.tensors[name].dtype.endswith(("F16", "F32", "F64"))
                and ckpt.tensors[name].shape[1] != width
            ):
                yield Problem(
                    f"its shape is {format_shape(ckpt.tensors[name].shape)}, but {config.describe(*HIDDEN)}",
                    file=ckpt.tensor_to_file[name],
                    key=name,
                    hint="use the config of this model",
                )
    for norm in NORMS:
        odd: dict[tuple[int, ...], list[int]] = {}
        for layer, names in anatomy.layers.items():
            found = ckpt.tensors.get(anatomy.stack.full_name(layer, norm)) if norm in names else None
            if found is not None and found.shape != (width,):
                odd.setdefault(found.shape, []).append(layer)
        for found_shape, layers in odd.items():
            name = anatomy.stack.full_name(layers[0], norm)
            yield Problem(
                f"in {format_layers(layers)} {norm} has the shape {format_shape(found_shape)}, but "
                f"{config.describe(*HIDDEN)}",
                file=ckpt.tensor_to_file[name],
                key=name,
                hint="use the config of this model; a multiple of the width is a tensor concatenated over ranks",
            )


def _is_of_another_part(config: Config, stack: Stack) -> bool:
    """Whether the layers are of a sub-config that is not the language model's: `esmc` in ESMFold 2, whose `esmc_config` says it."""
    resolved = config.resolved
    if resolved is None:
        return False
    path = f"{stack.prefix.partition('.')[0]}_config."
    return resolved.text.path != path and any(part.path == path for part in resolved.parts)
