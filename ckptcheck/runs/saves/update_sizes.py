"""How far weights moved between two saves, from the elements that were sampled of each: relative to the size of the weight."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from statistics import median

from ckptcheck.runs.saves.save import Save

LEAST_ELEMENTS = 64
"""Least elements of a tensor: a smaller sample is too noisy."""


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
