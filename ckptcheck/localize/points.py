"""How far apart two sides are at each point of a forward, in the order in which it is computed."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ckptcheck.engines.activations import Activations

if TYPE_CHECKING:
    import numpy as np

EPSILON = {"float32": 2.0**-23, "bfloat16": 2.0**-7, "float16": 2.0**-10}
"""Distance from 1 to the next number."""
PARTS = (
    "input_layernorm", "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.q_norm", "self_attn.k_norm",
    "self_attn.core", "self_attn.o_proj", "post_attention_layernorm", "mlp.gate", "mlp.gate_proj", "mlp.up_proj", "mlp.act",
    "mlp.down_proj", "mlp",
)  # fmt: skip
"""Of a decoder layer, in the order in which they are computed."""
LAYER = re.compile(r"model\.layers\.(\d+)\.(.+)")


@dataclass(frozen=True)
class Point:
    """One point on both sides.

    relative: norm of the difference over that of the reference. largest: of the differences. cosine: of both, flattened.
    first: the first token whose own relative difference is over the limit, None where none is. broken: which sides have NaN
    or Inf there.
    """

    name: str
    relative: float
    largest: float
    cosine: float
    first: int | None
    tokens: int
    broken: tuple[str, ...] = ()

    @property
    def layer(self) -> int | None:
        """The decoder layer, None outside."""
        found = LAYER.fullmatch(self.name)
        return int(found[1]) if found else None


def order(name: str) -> tuple[int, int, int]:
    """Return a key that sorts points as they are computed.

    >>> sorted(["lm_head", "model.layers.10.mlp.act", "model.layers.9.mlp", "model.embed_tokens"], key=order)
    ['model.embed_tokens', 'model.layers.9.mlp', 'model.layers.10.mlp.act', 'lm_head']
    """
    outside = {"model.embed_tokens": 0, "model.norm": 2, "lm_head": 3}
    found = LAYER.fullmatch(name)
    if not found:
        return outside.get(name, 4), 0, 0
    return 1, int(found[1]), PARTS.index(found[2]) if found[2] in PARTS else len(PARTS)


def points(reference: Activations, other: Activations, sides: tuple[str, str], limit: float) -> list[Point]:
    """Compare the points that both sides have with the same shape. limit: relative, for `Point.first`."""
    both = [name for name in reference if name in other and reference[name].shape == other[name].shape]
    return [_point(name, reference[name], other[name], sides, limit) for name in sorted(both, key=order)]


def _point(
    name: str, here: np.ndarray[Any, Any], there: np.ndarray[Any, Any], sides: tuple[str, str], limit: float
) -> Point:
    import numpy as np

    a, b = here.astype(np.float64), there.astype(np.float64)
    broken = tuple(side for side, values in zip(sides, (a, b), strict=True) if not np.isfinite(values).all())
    if broken:
        bad = ~(np.isfinite(a).all(1) & np.isfinite(b).all(1))
        return Point(name, float("nan"), float("nan"), float("nan"), int(bad.argmax()), len(a), broken)
    apart = np.abs(a - b)
    norms = np.linalg.norm(a, axis=1)
    rows = np.divide(np.linalg.norm(a - b, axis=1), norms, out=np.zeros(len(a)), where=norms > 0)
    rows[(norms == 0) & (apart.max(1, initial=0.0) > 0)] = np.inf
    over = rows > limit
    whole, lengths = float(np.linalg.norm(a)), float(np.linalg.norm(a) * np.linalg.norm(b))
    return Point(
        name,
        float(np.linalg.norm(a - b)) / whole if whole else float(apart.max(initial=0.0) > 0),
        float(apart.max(initial=0.0)),
        float((a * b).sum()) / lengths if lengths else float(not apart.any()),
        int(over.argmax()) if over.any() else None,
        len(a),
    )


def least(dtype: str) -> float:
    """Return the least relative difference that is no rounding: 64 times the distance from 1 to the next number.

    float32 sides that compute the same agree within 12 of these in three layers and 40 in thirty (measured, SmolLM2).
    """
    return min(0.5, 64 * EPSILON.get(dtype, EPSILON["bfloat16"])) if dtype == "float32" else 16 * EPSILON[dtype]


def first_diverging(found: Sequence[Point], limit: float, growth: float = 20.0) -> Point | None:
    """Return the first point that is further apart than rounding can bring it, None where there is none.

    That is over `limit`, and over `growth` times the largest difference before it: rounding errors grow from layer to layer,
    and a point that goes on with what came in wrong is not where it began.
    """
    before = 0.0
    for point in found:
        if point.broken:
            return point
        if point.relative > max(limit, growth * before):
            return point
        before = max(before, point.relative)
    return None


def by_layer(found: Sequence[Point]) -> Mapping[str, Point]:
    """Return the worst point of each layer, and of what is outside: ``embed_tokens``, ``0``, ``1``, …, ``norm``, ``lm_head``."""
    worst: dict[str, Point] = {}
    for point in found:
        key = str(point.layer) if point.layer is not None else point.name.rpartition(".")[2]
        if key not in worst or not point.relative <= worst[key].relative:
            worst[key] = point
    return worst
