"""Computes how much two sides differ at each point of a forward pass, in the order of execution."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

    from ckptcheck.live.runtime.engines.activations import Activations

EPSILON = {"float32": 2.0**-23, "bfloat16": 2.0**-7, "float16": 2.0**-10}
"""Dtype → distance from 1 to the next larger number."""
PARTS = (
    "input_layernorm", "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.q_norm", "self_attn.k_norm",
    "self_attn.core", "self_attn.o_proj", "post_attention_layernorm", "mlp.gate", "mlp.gate_proj", "mlp.up_proj", "mlp.act",
    "mlp.down_proj", "mlp",
)  # fmt: skip
"""The points of a decoder layer in the order of execution."""
LAYER = re.compile(r"model\.layers\.(\d+)\.(.+)")


@dataclass(frozen=True)
class Point:
    """The output of one module, compared between the two sides."""

    name: str
    """The module in the plain Hugging Face form (``model.layers.0.mlp.act``)."""
    relative: float
    """Norm of the difference, divided by the norm of the reference."""
    largest: float
    """The largest absolute difference of a number."""
    cosine: float
    """Cosine similarity of the two flattened matrices."""
    first_token: int | None
    """The first token whose own relative difference is over the limit, or that is not finite; None without one."""
    tokens: int
    """How many tokens the prompt has at this point."""
    non_finite_sides: tuple[str, ...] = ()
    """The sides that have NaN or Inf there."""

    @property
    def layer(self) -> int | None:
        """The index of the decoder layer; None for a point outside of the layers."""
        match = LAYER.fullmatch(self.name)
        return int(match[1]) if match else None


def execution_order(name: str) -> tuple[int, int, int]:
    """Return a key that sorts points in the order of execution.

    >>> sorted(["lm_head", "model.layers.10.mlp.act", "model.layers.9.mlp", "model.embed_tokens"], key=execution_order)
    ['model.embed_tokens', 'model.layers.9.mlp', 'model.layers.10.mlp.act', 'lm_head']
    """
    outside = {"model.embed_tokens": 0, "model.norm": 2, "lm_head": 3}
    match = LAYER.fullmatch(name)
    if not match:
        return outside.get(name, 4), 0, 0
    return 1, int(match[1]), PARTS.index(match[2]) if match[2] in PARTS else len(PARTS)


def compare_points(reference: Activations, other: Activations, sides: tuple[str, str], limit: float) -> list[Point]:
    """Compare the points that both sides have with the same shape. limit: relative difference, for `Point.first_token`."""
    shared_names = [name for name in reference if name in other and reference[name].shape == other[name].shape]
    return [
        _compare_point(name, reference[name], other[name], sides, limit)
        for name in sorted(shared_names, key=execution_order)
    ]


def _compare_point(
    name: str, reference: np.ndarray[Any, Any], other: np.ndarray[Any, Any], sides: tuple[str, str], limit: float
) -> Point:
    """Compare the matrices [tokens, width] of one point. limit: relative difference, for `Point.first_token`."""
    import numpy as np

    a, b = reference.astype(np.float64), other.astype(np.float64)
    non_finite_sides = tuple(side for side, values in zip(sides, (a, b), strict=True) if not np.isfinite(values).all())
    if non_finite_sides:
        non_finite_rows = ~(np.isfinite(a).all(1) & np.isfinite(b).all(1))
        return Point(
            name, float("nan"), float("nan"), float("nan"), int(non_finite_rows.argmax()), len(a), non_finite_sides
        )
    abs_diff = np.abs(a - b)
    norms = np.linalg.norm(a, axis=1)
    relative_by_row = np.divide(np.linalg.norm(a - b, axis=1), norms, out=np.zeros(len(a)), where=norms > 0)
    relative_by_row[(norms == 0) & (abs_diff.max(1, initial=0.0) > 0)] = np.inf
    over_limit = relative_by_row > limit
    norm, norm_product = float(np.linalg.norm(a)), float(np.linalg.norm(a) * np.linalg.norm(b))
    return Point(
        name,
        float(np.linalg.norm(a - b)) / norm if norm else float(abs_diff.max(initial=0.0) > 0),
        float(abs_diff.max(initial=0.0)),
        float((a * b).sum()) / norm_product if norm_product else float(not abs_diff.any()),
        int(over_limit.argmax()) if over_limit.any() else None,
        len(a),
    )


def rounding_limit(dtype: str) -> float:
    """Return the largest relative difference that rounding explains: 64 times the distance from 1 to the next number in float32.

    In narrower dtypes it is 16 times that distance. float32 sides that compute the same model agree within 12 of these distances
    in three layers and 40 in thirty (measured, SmolLM2).
    """
    return min(0.5, 64 * EPSILON.get(dtype, EPSILON["bfloat16"])) if dtype == "float32" else 16 * EPSILON[dtype]


def find_first_diverging(found: Sequence[Point], limit: float, growth: float = 20.0) -> Point | None:
    """Return the first point that differs by more than rounding or is not finite; None without one.

    Its relative difference is over `limit`, and over `growth` times the largest difference before it: rounding errors grow from
    layer to layer, and a point that only passes on a wrong input is not the origin.
    """
    before = 0.0
    for point in found:
        if point.non_finite_sides:
            return point
        if point.relative > max(limit, growth * before):
            return point
        before = max(before, point.relative)
    return None


def worst_by_layer(found: Sequence[Point]) -> Mapping[str, Point]:
    """Return the worst point of each layer, and each point outside: ``embed_tokens``, ``0``, ``1``, …, ``norm``, ``lm_head``."""
    worst: dict[str, Point] = {}
    for point in found:
        key = str(point.layer) if point.layer is not None else point.name.rpartition(".")[2]
        if key not in worst or not point.relative <= worst[key].relative:
            worst[key] = point
    return worst
