"""Describes how the other side's activations are related to the reference's at the first diverging point, which hints at the cause.

ckptcheck names a relation only if it explains nearly all of the difference.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

    from ckptcheck.live.runtime.engines.activations import Activations

EXPLAINED = 0.02
"""A relation holds if the norm of what it leaves unexplained is below this share of the norm of the difference."""


def describe_relation(name: str, reference: Activations, other: Activations) -> str | None:
    """Describe how the two outputs of a point are related; None without one. name: a point of both sides."""
    import numpy as np

    a, b = reference[name].astype(np.float64), other[name].astype(np.float64)
    if not (np.isfinite(a).all() and np.isfinite(b).all()):
        return None
    return (
        _describe_exchange(name, reference, other)
        or _describe_factor(a, b)
        or _describe_column_order(a, b)
        or _describe_factors(a, b, 1, "each token by a factor of its own, as a norm with another epsilon does")
        or _describe_factors(a, b, 0, "each column by a factor of its own, as a norm with other weights does")
        or _describe_offset(a, b)
    )


def _unexplained_share(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any], explained: np.ndarray[Any, Any]) -> float:
    """Return the norm of ``b - explained``, divided by the norm of ``b - a``. explained: what a relation predicts for b."""
    import numpy as np

    difference = float(np.linalg.norm(b - a))
    return float(np.linalg.norm(b - explained)) / difference if difference else 1.0


def _describe_exchange(name: str, reference: Activations, other: Activations) -> str | None:
    """Test whether b is the output of another point of the same module: gate and up, k and v."""
    import numpy as np

    parent, _, short_name = name.rpartition(".")
    a, b = reference[name], other[name]
    most = EXPLAINED * float(np.linalg.norm(b - a))
    for sibling, values in reference.items():
        if sibling == name or sibling.rpartition(".")[0] != parent or values.shape != b.shape:
            continue
        if float(np.linalg.norm(b - values)) < most:
            its_name = sibling.rpartition(".")[2]
            if sibling in other and float(np.linalg.norm(other[sibling] - a)) < most:
                return f"{short_name} and {its_name} are exchanged"
            return f"it is what {its_name} gives on the other side"
    return None


def _describe_factor(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> str | None:
    """Test whether b is a times one factor."""
    square_sum = float((a * a).sum())
    factor = float((a * b).sum()) / square_sum if square_sum else 0.0
    if not b.any():
        return "it is all zero"
    return f"{factor:.4g} times what it should be" if _unexplained_share(a, b, factor * a) < EXPLAINED else None


def _describe_factors(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any], axis: int, description: str) -> str | None:
    """Test whether b is a with one factor for each slice along an axis.

    axis: the axis that one factor covers; it needs a few numbers, because as many factors as numbers would explain everything.
    """
    import numpy as np

    if a.shape[axis] < 4:
        return None
    square_sums = (a * a).sum(axis, keepdims=True)
    factors = np.divide(
        (a * b).sum(axis, keepdims=True), square_sums, out=np.zeros_like(square_sums), where=square_sums > 0
    )
    if _unexplained_share(a, b, factors * a) >= EXPLAINED:
        return None
    low, high = float(factors.min()), float(factors.max())
    return f"{description} ({low:.4g} to {high:.4g})"


def _describe_column_order(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> str | None:
    """Test whether b has the columns of a in another order: an interleave that is not undone, or ranks in another order."""
    import numpy as np

    if len(a) < 4 or a.shape != b.shape:
        return None
    scale = max(float(np.abs(a).max()), 1e-30)
    columns_by_key: dict[bytes, list[int]] = {}
    for column, key in enumerate(np.round(a[:4] / scale, 3).T.astype(np.float32)):
        columns_by_key.setdefault((key + 0.0).tobytes(), []).append(column)
    order = []
    for key in np.round(b[:4] / scale, 3).T.astype(np.float32):
        if not (candidates := columns_by_key.get((key + 0.0).tobytes())):
            return None
        order.append(candidates.pop(0) if len(candidates) > 1 else candidates[0])
    moved = sum(column != source for column, source in enumerate(order))
    if not moved or _unexplained_share(a, b, a[:, order]) >= EXPLAINED:
        return None
    return f"the same columns in another order ({moved} of {len(order)} are elsewhere)"


def _describe_offset(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> str | None:
    """Test whether b is a with the same row added to every token: a bias that is missing, or one too many."""
    if len(a) < 4:
        return None
    return (
        "the same row is added to every token, as a bias is"
        if _unexplained_share(a, b, a + (b - a).mean(0)) < EXPLAINED
        else None
    )
