"""Splits stored tensors into tensors of the plain Hugging Face form: one function for each stored layout.

Sources: megatron/core/transformer/attention.py `get_query_key_value_tensors` (groups of queries, one key, one value),
megatron/core/fusions/fused_bias_swiglu.py (gate first, then up); transformers modeling_gpt_oss.py (gate and up alternate,
experts stored with inputs before outputs), modeling_mixtral.py of 5.x (`gate_up_proj` [experts, 2 × width, hidden]).
"""

from __future__ import annotations

from collections.abc import Callable

from ckptcheck.compare.bridge.model_dimensions import ModelDimensions
from ckptcheck.compare.bridge.tensor_layout import LayoutError, TensorLayout, concatenate

SplitFunction = Callable[[TensorLayout, ModelDimensions], list[TensorLayout]]


def keep_whole(layout: TensorLayout, dimensions: ModelDimensions) -> list[TensorLayout]:
    """Return the tensor unchanged."""
    return [layout]


def split_transposed(layout: TensorLayout, dimensions: ModelDimensions) -> list[TensorLayout]:
    """Transpose a matrix that is stored as [inputs, outputs]."""
    return [layout.transpose()]


def split_glu(layout: TensorLayout, dimensions: ModelDimensions) -> list[TensorLayout]:
    """Split [gate; up] into its two halves."""
    rows = layout.shape[0] if layout.shape else 1
    if rows % 2:
        raise LayoutError(f"it has {rows} rows, which do not divide into a gate and an up projection of equal size")
    return [layout.cut(0, 0, rows // 2), layout.cut(0, rows // 2, rows)]


def split_glu_transposed(layout: TensorLayout, dimensions: ModelDimensions) -> list[TensorLayout]:
    """Split gate and up that lie side by side in a matrix stored as [inputs, outputs] (Llama 4)."""
    return split_glu(layout.transpose(), dimensions)


def split_glu_alternating(layout: TensorLayout, dimensions: ModelDimensions) -> list[TensorLayout]:
    """Split gate and up whose outputs alternate; a matrix is stored as [inputs, outputs] (gpt-oss)."""
    plain = layout.transpose() if len(layout.shape) == 2 else layout
    rows = plain.shape[0] if plain.shape else 1
    if rows % 2:
        raise LayoutError(f"it has {rows} outputs, which do not divide into a gate and an up projection of equal size")
    return [plain.cut(0, 0, rows, 2), plain.cut(0, 1, rows, 2)]


def split_qkv_interleaved(layout: TensorLayout, dimensions: ModelDimensions) -> list[TensorLayout]:
    """Split Megatron's fused QKV: for each key-value head its queries, its key, its value."""
    heads, groups, width = _attention(dimensions)
    each = heads // groups
    rows = groups * (each + 2) * width
    if not layout.shape or layout.shape[0] != rows:
        raise LayoutError(
            f"it has {layout.shape[0] if layout.shape else 1} rows, and {groups} key-value heads need {rows}"
        )
    parts: list[list[TensorLayout]] = [[], [], []]
    for group in range(groups):
        at = group * (each + 2) * width
        for part, begin, number in zip(parts, (0, each, each + 1), (each, 1, 1), strict=True):
            part.append(layout.cut(0, at + begin * width, at + (begin + number) * width))
    return [concatenate(part) for part in parts]


def split_qkv_stacked(layout: TensorLayout, dimensions: ModelDimensions) -> list[TensorLayout]:
    """Split [queries; keys; values] (Phi-3, engines)."""
    heads, groups, width = _attention(dimensions)
    ends = (heads * width, (heads + groups) * width, (heads + 2 * groups) * width)
    if not layout.shape or layout.shape[0] != ends[2]:
        raise LayoutError(
            f"it has {layout.shape[0] if layout.shape else 1} rows, and {heads} heads with {groups} key-value heads need {ends[2]}"
        )
    return [layout.cut(0, begin, end) for begin, end in zip((0, *ends), ends, strict=False)]


def _attention(dimensions: ModelDimensions) -> tuple[int, int, int]:
    heads, groups, width = dimensions.heads, dimensions.kv_heads, dimensions.head_dim
    if not heads or not groups or not width or heads % groups:
        raise LayoutError(
            "neither the config nor Megatron's arguments say how many heads and key-value heads there are"
        )
    return heads, groups, width
