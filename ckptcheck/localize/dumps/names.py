"""Brings what dumps name to points: modules of transformers, vLLM, SGLang (joined projections) and Megatron ([s, b, h]).

Names may stand under any prefix (``module.``, ``actor.model.``). Tensor-parallel ranks are put together where a point's columns
are shared; how joined projections lie within a rank has to be known from the config.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ckptcheck.localize.points import PARTS, order

if TYPE_CHECKING:
    from ckptcheck.bridge.geometry import Geometry


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
"""Points of which each rank has its own columns."""


@dataclass(frozen=True)
class Shape:
    """heads, groups of queries, width of a head; None where no config tells."""

    heads: int | None = None
    groups: int | None = None
    size: int | None = None

    @classmethod
    def of(cls, geometry: Geometry) -> Shape:
        """Take it from a config's geometry."""
        return cls(geometry.heads, geometry.groups, geometry.head_dim)


def ranks_joined(ranks: Sequence[Mapping[str, Any]], shape: Shape) -> dict[str, Any]:
    """Return point → matrix [tokens, width], float32, in the order of execution. ranks: of each, module name → tensor."""
    import numpy as np

    parts: dict[str, list[Any]] = {}
    for held in ranks:
        for name, value in held.items():
            if getattr(value, "ndim", 0) < 2 or value.dtype.kind != "f":
                continue
            for point, matrix in _points(name, value, shape, len(ranks)):
                parts.setdefault(point, []).append(matrix)
    found = {}
    for point in sorted(parts, key=order):
        pieces = parts[point]
        shared = point.endswith(COLUMNS) and len(pieces) == len(ranks) > 1
        whole = np.concatenate(pieces, 1) if shared and len({len(piece) for piece in pieces}) == 1 else pieces[0]
        found[point] = np.ascontiguousarray(whole, dtype=np.float32)
    return found


def _points(name: str, value: Any, shape: Shape, ranks: int) -> Iterator[tuple[str, Any]]:
    match = LAYER.fullmatch(name)
    if match is None:
        own = name.rpartition(".")[2]
        if own in OUTSIDE and ".layers." not in name:
            yield OUTSIDE[own], _matrix(value)[-1:] if OUTSIDE[own] == "lm_head" else _matrix(value)
        return
    at, part, into = f"model.layers.{match[1]}", MEGATRON.get(match[2], match[2]), bool(match[3])
    if into:
        if part in INTO:
            yield f"{at}.{INTO[part]}", _matrix(value)
    elif part in PARTS:
        yield f"{at}.{part}", _matrix(value)
    elif part == "mlp.gate_up_proj":
        matrix = _matrix(value)
        half = matrix.shape[1] // 2
        yield f"{at}.mlp.gate_proj", matrix[:, :half]
        yield f"{at}.mlp.up_proj", matrix[:, half:]
    elif part in ("self_attn.qkv_proj", "self_attention.linear_qkv") and shape.heads and shape.groups and shape.size:
        yield from _qkv(at, _matrix(value), shape, ranks, part.endswith("linear_qkv"))


def _qkv(at: str, matrix: Any, shape: Shape, ranks: int, grouped: bool) -> Iterator[tuple[str, Any]]:
    heads, groups, size = shape.heads or 0, shape.groups or 0, shape.size or 0
    heads, groups = heads // ranks, max(1, groups // ranks)
    if matrix.shape[1] != (heads + 2 * groups) * size:
        return
    if grouped:  # Megatron: per group its queries, its key, its value
        cut = matrix.reshape(len(matrix), groups, heads // groups + 2, size)
        q, k, v = cut[:, :, :-2], cut[:, :, -2], cut[:, :, -1]
    else:
        q, k, v = (
            matrix[:, : heads * size],
            matrix[:, heads * size : (heads + groups) * size],
            matrix[:, -groups * size :],
        )
    for which, part in zip("qkv", (q, k, v), strict=True):
        yield f"{at}.self_attn.{which}_proj", part.reshape(len(matrix), -1)


def _matrix(value: Any) -> Any:
    """Return [1, tokens, …], [tokens, 1, …] or [tokens, …] as [tokens, width]."""
    while value.ndim > 2 and 1 in value.shape[:2]:
        value = value.squeeze(0 if value.shape[0] == 1 else 1)
    return value.reshape(len(value), -1)
