"""How far weights moved between two saves, from the elements that were sampled of each: relative to the size of the weight."""

from __future__ import annotations

from functools import lru_cache
from math import isfinite
from statistics import median
from typing import TYPE_CHECKING

from ckptcheck.saves.save import Save, TensorRecord

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

LEAST_ELEMENTS = 64
"""Elements below which a sample says too little of a tensor."""


def measure_update(before: TensorRecord, after: TensorRecord) -> float | None:
    """Return the root mean square of the change, divided by that of the larger weight: 0 for none, √2 for another weight.

    None where there is no sample, where it is not finite, or where both are zero.
    """
    if not before.sample or len(before.sample) != len(after.sample) or before.shape != after.shape:
        return None
    if after.elements < LEAST_ELEMENTS:
        return None
    if before.content == after.content:
        return 0.0
    first, second = _decode(before.sample), _decode(after.sample)
    size = max(float((first * first).mean()), float((second * second).mean()))
    change = float(((second - first) ** 2).mean())
    if not isfinite(size) or not isfinite(change) or size == 0:
        return None
    return float((change / size) ** 0.5)


@lru_cache(4096)
def _decode(sample: bytes) -> NDArray[np.float64]:
    import numpy as np

    return np.frombuffer(sample, "<f4").astype(np.float64)


def measure_updates(before: Save, after: Save) -> dict[str, float]:
    """Return weight → `measure_update`, for those of which it is known."""
    sizes = {
        name: measure_update(before.weights[name], record)
        for name, record in after.weights.items()
        if name in before.weights
    }
    return {name: size for name, size in sizes.items() if size is not None}


def measure_distance(before: Save, after: Save) -> float | None:
    """Return the median update of the matrices: how far apart two saves are. None where none can be compared."""
    sizes = [size for name, size in measure_updates(before, after).items() if len(after.weights[name].shape) >= 2]
    return median(sizes) if sizes else None
