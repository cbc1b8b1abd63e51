"""Maps module names in dumps to points: of transformers, vLLM, SGLang (fused projections) and Megatron ([s, b, h]).

Names may have any prefix (``module.``, ``actor.model.``). `join_ranks` concatenates the tensor-parallel ranks of points whose
columns are split over ranks. The layout of fused projections within a rank comes from the config.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ckptcheck.parity.localize.points import PARTS, execution_order

if TYPE_CHECKING:
    from ckptcheck.compare.bridge.model_dimensions import ModelDimensions


LAYER = re.compile(r"(?:.*\.)?layers\.(\d+)\.(.+?)(:in)?")
MEGATRON = {
    "self_attention.linear_proj": "self_attn.o_proj",
    "self_attention.core_attention": "self_attn.core",
    "self_attention.q_layernorm": "self_attn.q_norm",
    "self_attention.k_layernorm": "self_attn.k_norm",
    "pre_mlp_layernorm": "post_attention_layernorm",
    "mlp.linear_fc2": "mlp.down_proj",
    "self_attention.linear_qkv": "self_attention.linear_qkv",
    "mlp.linear_fc1": "mlp.gate_up_proj",
}
OUTSIDE = {
    "embed_tokens": "model.embed_tokens",
    "embedding": "model.embed_tokens",
    "norm": "model.norm",
    "final_layernorm": "model.norm",
    "lm_head": "lm_head",
    "output_layer": "lm_head",
    "logits_processor": "lm_head",
}
INTO = {"self_attn.o_proj": "self_attn.core", "mlp.down_proj": "mlp.act"}
COLUMNS = ("q_proj", "k_proj", "v_proj", "q_norm", "k_norm", "core", "gate_proj", "up_proj", "act", "lm_head")
"""Suffixes of points of which each tensor-parallel rank has its own columns."""


@dataclass(frozen=True)
class AttentionShape:
    """The sizes that splitting a fused qkv projection needs; None where no config gives them."""

    heads: int | None = None
    """Query heads."""
    groups: int | None = None
    """Key-value heads, each of which serves a group of query heads."""
    size: int | None = None
    """Width of a head."""

    @classmethod
    def of(cls, geometry: ModelDimensions) -> AttentionShape:
        """Take the sizes from the dimensions of a model."""
        return cls(geometry.heads, geometry.kv_heads, geometry.head_dim)


def join_ranks(ranks: Sequence[Mapping[str, Any]], shape: AttentionShape) -> dict[str, Any]:
    """Return point → matrix [tokens, width], float32, in the order of execution.

    ranks: for each rank, module name → tensor.
    """
    import numpy as np

    parts: dict[str, list[Any]] = {}
    for tensors in ranks:
        for name, value in tensors.items():
            if getattr(value, "ndim", 0) < 2 or value.dtype.kind != "f":
                continue
            for point, matrix in _yield_points(name, value, shape, len(ranks)):
                parts.setdefault(point, []).append(matrix)
    points = {}
    for point in sorted(parts, key=execution_order):
        pieces = parts[point]
        is_split = point.endswith(COLUMNS) and len(pieces) == len(ranks) > 1
        joined = np.concatenate(pieces, 1) if is_split and len({len(piece) for piece in pieces}) == 1 else pieces[0]
        points[point] = np.ascontiguousarray(joined, dtype=np.float32)
    return points


def _yield_points(name: str, value: Any, shape: AttentionShape, ranks: int) -> Iterator[tuple[str, Any]]:
    """Yield the points that a tensor of one rank holds, with their matrices; none for a module that is no point."""
    match = LAYER.fullmatch(name)
    if match is None:
        module = name.rpartition(".")[2]
        if module in OUTSIDE and ".layers." not in name:
            yield (
                OUTSIDE[module],
                _flatten_to_matrix(value)[-1:] if OUTSIDE[module] == "lm_head" else _flatten_to_matrix(value),
            )
        return
    layer, part, is_input = f"model.layers.{match[1]}", MEGATRON.get(match[2], match[2]), bool(match[3])
    if is_input:
        if part in INTO:
            yield f"{layer}.{INTO[part]}", _flatten_to_matrix(value)
    elif part in PARTS:
        yield f"{layer}.{part}", _flatten_to_matrix(value)
    elif part == "mlp.gate_up_proj":
        matrix = _flatten_to_matrix(value)
        half = matrix.shape[1] // 2
        yield f"{layer}.mlp.gate_proj", matrix[:, :half]
        yield f"{layer}.mlp.up_proj", matrix[:, half:]
    elif part in ("self_attn.qkv_proj", "self_attention.linear_qkv") and shape.heads and shape.groups and shape.size:
        yield from _split_qkv(layer, _flatten_to_matrix(value), shape, ranks, part.endswith("linear_qkv"))


def _split_qkv(
    layer: str, matrix: Any, shape: AttentionShape, ranks: int, is_grouped: bool
) -> Iterator[tuple[str, Any]]:
    """Split a fused qkv projection of one rank. is_grouped: Megatron's layout, else all queries, all keys, all values."""
    heads, groups, size = shape.heads or 0, shape.groups or 0, shape.size or 0
    heads, groups = heads // ranks, max(1, groups // ranks)
    if matrix.shape[1] != (heads + 2 * groups) * size:
        return
    # Megatron stores for each group its queries, its key and its value
    if is_grouped:
        blocks = matrix.reshape(len(matrix), groups, heads // groups + 2, size)
        q, k, v = blocks[:, :, :-2], blocks[:, :, -2], blocks[:, :, -1]
    else:
        q, k, v = (
            matrix[:, : heads * size],
            matrix[:, heads * size : (heads + groups) * size],
            matrix[:, -groups * size :],
        )
    for letter, part in zip("qkv", (q, k, v), strict=True):
        yield f"{layer}.self_attn.{letter}_proj", part.reshape(len(matrix), -1)


def _flatten_to_matrix(value: Any) -> Any:
    """Reshape [1, tokens, …], [tokens, 1, …] or [tokens, …] to [tokens, width]."""
    while value.ndim > 2 and 1 in value.shape[:2]:
        value = value.squeeze(0 if value.shape[0] == 1 else 1)
    return value.reshape(len(value), -1)
