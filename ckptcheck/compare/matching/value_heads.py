"""Finds the value heads of critics, and whether they were ever trained."""

from __future__ import annotations

from math import prod

from ckptcheck.checkpoint.heads import explain_head_shape
from ckptcheck.compare.bridge.hf_names import normalize_hf_name
from ckptcheck.compare.matching.cast import can_cast, cast_patterns
from ckptcheck.compare.matching.pairing import (
    MEGATRON_EMBEDDING,
    MEGATRON_HEAD,
    is_value_head,
    is_value_head_in_output_layer,
)
from ckptcheck.compare.matching.side import ComparisonSide
from ckptcheck.text.formatting import format_shape


def list_value_heads(*sides: ComparisonSide) -> list[tuple[ComparisonSide, str]]:
    """Return the side and name of every value-head weight."""
    return [
        (side, name)
        for side in sides
        for name, layout in side.stored.items()
        if (name.endswith(".weight") and is_value_head(normalize_hf_name(name)))
        or is_value_head_in_output_layer(side, name, layout)
    ]


def find_lm_head(side: ComparisonSide) -> str | None:
    """Return the name of the weight that produces logits: the LM head, or a tied embedding; None in a critic."""
    names = {
        normalize_hf_name(name): name
        for name, layout in side.stored.items()
        if not is_value_head_in_output_layer(side, name, layout)
    }
    stored = names.get(side.head) or names.get(MEGATRON_HEAD)
    if stored is None and side.tied:
        stored = names.get(side.embedding) or names.get(MEGATRON_EMBEDDING)
    return stored


def find_embedding(side: ComparisonSide) -> str | None:
    """Return the name of the embedding."""
    names = {normalize_hf_name(name): name for name in side.stored}
    return names.get(side.embedding) or names.get(MEGATRON_EMBEDDING)


def is_first_row_of(side: ComparisonSide, name: str, other: ComparisonSide, stored: str) -> bool:
    """Whether a value head equals the first row of a weight of the other side, rounded to its dtype. Raises UnreadableFile."""
    from ckptcheck.compare.matching.tensor_files import TensorFiles

    own, rows = side.stored[name], other.stored[stored]
    if len(rows.shape) != 2 or not rows.shape[0] or prod(own.shape) != rows.shape[1]:
        return False
    if own.dtype != rows.dtype and not can_cast(rows.dtype, own.dtype):
        return False
    with TensorFiles(side.source) as ours, TensorFiles(other.source) as theirs:
        head = ours.read_tensor(own)
        row = cast_patterns(theirs.read_tensor(rows.cut(0, 0, 1)), rows.dtype, own.dtype)
        return head.tobytes() == row.tobytes() and bool(head.any())


def describe_unusable_head(side: ComparisonSide, name: str) -> str:
    """Return why a value head cannot produce one value per token; "" if it can. Raises UnreadableFile."""
    import numpy as np

    from ckptcheck.compare.matching.tensor_files import TensorFiles

    layout = side.stored[name]
    rows = find_embedding(side)
    hidden = side.stored[rows].shape[1] if rows is not None and len(side.stored[rows].shape) == 2 else None
    width = layout.shape[-1] if layout.shape else 0
    if prod(layout.shape[:-1]) != 1 or len(layout.shape) > 2 or (hidden is not None and width != hidden):
        layout_name = explain_head_shape(layout.shape, (1, hidden)) if hidden else None
        return (
            f"its shape is {format_shape(layout.shape)}, which does not map {hidden or 'the'} hidden numbers to one value"
            + (f"; {layout_name.text}" if layout_name else "")
        )
    if not can_cast(layout.dtype, "F32"):
        return ""
    with TensorFiles(side.source) as files:
        values = files.read_numbers(layout, kind="f8")
    not_finite = values.size - int(np.isfinite(values).sum())
    return f"{not_finite:,} of its {values.size:,} numbers are not finite" if not_finite else ""
