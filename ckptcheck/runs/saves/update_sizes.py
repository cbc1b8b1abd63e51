"""Keeps some elements of each weight of a save, and measures with them how far weights moved between two saves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import prod
from statistics import median
from typing import TYPE_CHECKING, Any

from ckptcheck.compare.bridge.tensor_layout import TensorLayout
from ckptcheck.runs.saves.save import Save

if TYPE_CHECKING:
    from numpy.typing import NDArray

LEAST_ELEMENTS = 64
"""Least elements of a tensor: a smaller sample is too noisy."""
SAMPLES = 256
"""Elements of each weight that are kept: enough to see a tensor jump, and a kilobyte."""
GOLDEN = 0.6180339887498949
"""Steps of this share of a tensor spread over it evenly, and meet no column twice as often as another."""


class Sample:
    """Elements of a tensor at places that depend on its shape alone, whichever way it is cut."""

    def __init__(self, layout: TensorLayout) -> None:
        import numpy as np

        elements = prod(layout.shape)
        number = min(elements, SAMPLES)
        flat = (
            np.arange(elements)
            if elements <= SAMPLES
            else (np.arange(1, number + 1) * GOLDEN % 1 * elements).astype(int)
        )
        self._dtype = layout.dtype
        self._places = np.array(np.unravel_index(flat, layout.shape)) if layout.shape else np.zeros((0, number), int)
        self._values = np.zeros(number, np.float32)

    def take(self, values: NDArray[Any], origin: tuple[int, ...]) -> None:
        """Take the elements that a rectangle holds. values: its elements as unsigned integers; origin: its first index."""
        import numpy as np

        from ckptcheck.values.dtypes import decode

        inside = np.ones(len(self._values), bool)
        for axis, (begin, size) in enumerate(zip(origin, values.shape, strict=True)):
            inside &= (self._places[axis] >= begin) & (self._places[axis] < begin + size)
        if inside.any():
            index = tuple(self._places[axis][inside] - begin for axis, begin in enumerate(origin))
            self._values[inside] = decode(self._dtype, np.ascontiguousarray(values[index]).reshape(-1))

    def encode(self) -> bytes:
        """Return the elements as float32 in little-endian order."""
        return self._values.astype("<f4").tobytes()


def measure_updates(before: Save, after: Save) -> dict[str, float]:
    """Return weight → root mean square of its change, divided by that of the larger weight: 0 for none, √2 for another weight.

    The result lacks weights without a sample, small weights, weights with a sample that is not finite, and weights that are zero in
    both.
    """
    import numpy as np

    names = [
        name
        for name, record in after.weights.items()
        if record.sample
        and name in before.weights
        and len(before.weights[name].sample) == len(record.sample)
        and before.weights[name].shape == record.shape
        and record.elements >= LEAST_ELEMENTS
    ]
    if not names:
        return {}
    lengths = np.array([len(after.weights[name].sample) // 4 for name in names])
    starts = np.concatenate([[0], np.cumsum(lengths)[:-1]])
    first, second = (
        np.frombuffer(b"".join(save.weights[name].sample for name in names), "<f4").astype(np.float64)
        for save in (before, after)
    )
    with np.errstate(all="ignore"):
        size = np.maximum(np.add.reduceat(first * first, starts), np.add.reduceat(second * second, starts))
        ratio = np.sqrt(np.add.reduceat((second - first) ** 2, starts) / size)
    return {name: float(one) for name, one in zip(names, ratio, strict=True) if np.isfinite(one)}


def take_median(updates: Mapping[str, float], save: Save) -> float | None:
    """Return the median update of the matrices, the distance of two saves. None without a measured matrix."""
    sizes = [size for name, size in updates.items() if len(save.weights[name].shape) >= 2]
    return median(sizes) if sizes else None


def measure_changed_share(before: Save, after: Save, names: Iterable[str]) -> float:
    """Return the share of the sampled elements of these weights that differ; 0 without samples."""
    import numpy as np

    sampled = [
        (before.weights[name].sample, after.weights[name].sample)
        for name in names
        if len(before.weights[name].sample) == len(after.weights[name].sample)
    ]
    if not any(first for first, _ in sampled):
        return 0.0
    first, second = (np.frombuffer(b"".join(samples), "<u4") for samples in zip(*sampled, strict=True))
    return float(np.mean(first != second))
