"""A tensor has no elements.

## What it checks
No tensor of the model or the adapter, heads for rewards and values included, has a dimension of 0.

## Why it matters
ZeRO-3 leaves tensors of shape [0] on every rank but the one that gathers them; a state dict saved from such a rank has all
names but few values. transformers stops with a size mismatch; tools that compare only names consider it complete.

## How to fix
Gather the parameters before saving (`zero_to_fp32.py`, or `stage3_gather_16bit_weights_on_model_save`).

## When it can be wrong
A model's own code may store an empty buffer as a marker or placeholder, and transformers loads it if the class creates one of
the same shape: use `--ignore CFG019`. CFG012 reports a partition that is too short but not empty, if the config
gives the shape.

## Seen in
PhysRAG#3 (309 of 851 tensors), deepspeedai/DeepSpeed#6836, deepspeedai/DeepSpeed#7900,
hiyouga/LlamaFactory#9369, Open-Reasoner-Zero#63 (heads)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.text.formatting import count, join_truncated


@rule("CFG019", "empty-tensor", severity="error", when=lambda ckpt: bool(ckpt.tensors))
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    empty: list[str] = []
    for template, forms in ckpt.forms_by_template.items():
        if any(0 in shape for _, shape in forms):
            for name in ckpt.layout.names_by_template[template]:
                shape = ckpt.tensors[name].shape
                if 0 in shape and not _has_none_by_design(ckpt, name, shape):
                    empty.append(name)
    if empty:
        yield Problem(
            f"{count(len(empty), 'tensor has', 'tensors have')} no elements, as ZeRO-3 leaves them on ranks that did not "
            f"gather: {join_truncated(empty)}",
            file=ckpt.tensor_to_file[min(empty)],
            key=min(empty),
            hint="gather the parameters before saving",
            names=tuple(empty),
        )


def _has_none_by_design(ckpt: Checkpoint, name: str, shape: tuple[int, ...]) -> bool:
    """Whether the config asks for a tensor without elements: `num_register_tokens` of 0, or two widths without a difference.

    ZeRO-3 leaves exactly one dimension, whatever the tensor was.
    """
    resolved = ckpt.config.resolved if ckpt.config is not None else None
    if resolved is None or len(shape) < 2:
        return False
    settings = [part.find(f"num_{name.rpartition('.')[2]}") for part in resolved.parts]
    if any(each is not None and each.value == 0 and type(each.value) is int for each in settings):
        return True
    hidden, embedding = resolved.find("hidden_size"), resolved.find("embedding_size")
    # MobileBERT's head has a row for each channel of the hidden states that the embedding does not have.
    return (
        name.endswith("cls.predictions.dense.weight")
        and hidden is not None
        and embedding is not None
        and hidden.value == embedding.value
    )
