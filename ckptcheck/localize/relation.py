"""What the other side's activations are to the reference's at the first point that differs: how they differ tells why.

A relation is only named when it explains nearly all of the difference.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ckptcheck.engines.activations import Activations

if TYPE_CHECKING:
    import numpy as np

EXPLAINED = 0.02
"""The norm of what a relation leaves unexplained, over that of the difference, at most."""


def relation(name: str, reference: Activations, other: Activations) -> str | None:
    """Say how they are related, None where no simple relation holds. name: a point that both sides have."""
    import numpy as np

    a, b = reference[name].astype(np.float64), other[name].astype(np.float64)
    if not (np.isfinite(a).all() and np.isfinite(b).all()):
        return None
    return (
        _exchanged(name, reference, other)
        or _factor(a, b)
        or _columns(a, b)
        or _factors(a, b, 1, "each token by a factor of its own, as a norm with another epsilon does")
        or _factors(a, b, 0, "each column by a factor of its own, as a norm with other weights does")
        or _offset(a, b)
    )


def _left(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any], made: np.ndarray[Any, Any]) -> float:
    import numpy as np

    apart = float(np.linalg.norm(b - a))
    return float(np.linalg.norm(b - made)) / apart if apart else 1.0


def _exchanged(name: str, reference: Activations, other: Activations) -> str | None:
    """Another point of the same layer: gate and up, k and v."""
    import numpy as np

    at = name.rpartition(".")[0]
    a, b = reference[name], other[name]
    for sibling in reference:
        if sibling != name and sibling.rpartition(".")[0] == at and reference[sibling].shape == b.shape:
            made = reference[sibling]
            if float(np.linalg.norm(b - made)) < EXPLAINED * float(np.linalg.norm(b - a)):
                back = sibling in other and float(np.linalg.norm(other[sibling] - a)) < EXPLAINED * float(
                    np.linalg.norm(b - a)
                )
                own = name.rpartition(".")[2]
                return (
                    f"{own} and {sibling.rpartition('.')[2]} are exchanged"
                    if back
                    else f"it is what {sibling.rpartition('.')[2]} gives on the other side"
                )
    return None


def _factor(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> str | None:
    whole = float((a * a).sum())
    factor = float((a * b).sum()) / whole if whole else 0.0
    if not b.any():
        return "it is all zero"
    return f"{factor:.4g} times what it should be" if _left(a, b, factor * a) < EXPLAINED else None


def _factors(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any], axis: int, what: str) -> str | None:
    """axis: over which one factor goes; a fit with as many factors as numbers would explain everything."""
    import numpy as np

    if a.shape[axis] < 4:
        return None
    whole = (a * a).sum(axis, keepdims=True)
    factors = np.divide((a * b).sum(axis, keepdims=True), whole, out=np.zeros_like(whole), where=whole > 0)
    if _left(a, b, factors * a) >= EXPLAINED:
        return None
    low, high = float(factors.min()), float(factors.max())
    return f"{what} ({low:.4g} to {high:.4g})"


def _columns(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> str | None:
    """The same columns in another order: an interleave not undone, ranks in another order."""
    import numpy as np

    if len(a) < 4 or a.shape != b.shape:
        return None
    scale = max(float(np.abs(a).max()), 1e-30)
    seen: dict[bytes, list[int]] = {}
    for column, key in enumerate(np.round(a[:4] / scale, 3).T.astype(np.float32)):
        seen.setdefault((key + 0.0).tobytes(), []).append(column)
    chosen = []
    for key in np.round(b[:4] / scale, 3).T.astype(np.float32):
        if not (places := seen.get((key + 0.0).tobytes())):
            return None
        chosen.append(places.pop(0) if len(places) > 1 else places[0])
    moved = sum(column != place for column, place in enumerate(chosen))
    if not moved or _left(a, b, a[:, chosen]) >= EXPLAINED:
        return None
    return f"the same columns in another order ({moved} of {len(chosen)} are elsewhere)"


def _offset(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> str | None:
    """The same row added to every token: a bias missing, or one too many."""
    if len(a) < 4:
        return None
    return (
        "the same row is added to every token, as a bias is" if _left(a, b, a + (b - a).mean(0)) < EXPLAINED else None
    )
