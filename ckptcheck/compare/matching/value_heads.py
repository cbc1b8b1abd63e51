"""Finds the value heads of critics, and whether they were ever trained."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from ckptcheck.checkpoint.heads import explain_head_shape
from ckptcheck.compare.bridge.hf_names import normalize_hf_name
from ckptcheck.compare.bridge.tensor_layout import TensorLayout
from ckptcheck.compare.matching.cast import can_cast, cast_patterns
from ckptcheck.compare.matching.pairing import (
    MEGATRON_EMBEDDING,
    MEGATRON_HEAD,
    is_value_head,
    is_value_head_in_output_layer,
)
from ckptcheck.compare.matching.side import ComparisonSide
from ckptcheck.text.formatting import format_shape, join_truncated

if TYPE_CHECKING:
    from ckptcheck.compare.matching.comparison import Comparison
    from ckptcheck.compare.matching.equality import CompareSpec
    from ckptcheck.compare.matching.pairing import TensorPair


def list_value_heads(comparison: Comparison) -> list[tuple[ComparisonSide, str]]:
    """Return the side and name of every value-head weight."""
    return [
        (side, name)
        for side in (comparison.first, comparison.second)
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
    from ckptcheck.values.dtypes import decode

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
        values = decode(layout.dtype, files.read_tensor(layout))
    not_finite = values.size - int(np.isfinite(values).sum())
    return f"{not_finite:,} of its {values.size:,} numbers are not finite" if not_finite else ""


def describe_critic_start(comparison: Comparison) -> str:
    """Return "only the head is new" with the heads' stored names if the critic otherwise equals the language model; "" if not.

    Reads both sides, unless they were read before.
    """
    result = comparison.match_result
    heads = list_value_heads(comparison)
    if len({id(side) for side, _ in heads}) != 1 or not result.pairs:
        return ""
    if result.missing or result.extra or result.shape_mismatches or comparison.undeclared_casts or comparison.unread:
        return ""
    differences = comparison.value_differences
    if differences.different or differences.quantized:
        return ""
    names = [name for _, name in heads]
    of = {stored for name, stored in result.heads.items() if name.rpartition(".")[0] == "score"}
    names += sorted(of - set(names))
    only = "only the head is" if len(names) == 1 else "only the head's tensors are"
    return f"{only} new in the critic: {join_truncated(names)}"


def list_compared_value_heads(comparison: Comparison) -> list[tuple[TensorPair, CompareSpec]]:
    """Return the value heads that both sides have, and how they are compared."""
    return [
        (pair, how)
        for pair, how in comparison.comparable_pairs
        if (pair.name.endswith(".weight") and is_value_head(normalize_hf_name(pair.name)))
        or (pair.name == MEGATRON_HEAD and pair.first.shape[:1] == (1,))
    ]


def count_trained_matrices(comparison: Comparison) -> tuple[int, int]:
    """Count the matrices, without heads, that differ for no known cause (as training changes them), and all of them."""
    heads = {pair.name for pair, _ in list_compared_value_heads(comparison)}
    different = {pair.name for pair, _, _ in comparison.value_differences.different} - heads
    if different:
        different -= {
            name for verdict in comparison.verdicts if verdict.confidence != "unknown" for name in verdict.tensors
        }
    matrices = [
        pair.name
        for pair, _ in comparison.comparable_pairs
        if pair.name not in heads and isinstance(pair.first, TensorLayout) and len(pair.first.shape) >= 2
    ]
    return sum(name in different for name in matrices), len(matrices)
