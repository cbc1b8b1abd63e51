"""Says where in a tensor an element is."""

from __future__ import annotations

from ckptcheck.phrase import shape
from ckptcheck.values.stats import TensorStats


def position(stats: TensorStats, flat: int) -> str:
    """Turn a flat index into one per dimension: ``[1, 5]``."""
    found: list[int] = []
    for dimension in reversed(stats.shape):
        flat, here = divmod(flat, dimension)
        found.append(here)
    return shape(reversed(found))
