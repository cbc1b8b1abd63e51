"""Finds matrices whose numbers are all many times as large, or as small, as those of the same matrix in other layers.

The value pass knows the largest magnitude of every tensor. If it is out of line, some rows of the matrix and of its
siblings are read, and the root mean square decides: one large number moves the maximum, but hardly the root mean
square.

The first and the last layers of trained models differ most from the others. Between them a matrix is compared with its
nearest neighbours as well, which allows narrower limits.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from statistics import median
from typing import TYPE_CHECKING

import msgspec

from ckptcheck.checkpoint.layout import Stack
from ckptcheck.values.channel_sample import choose_channels
from ckptcheck.values.detectors.matrix_samples import FLOATS, read_rows
from ckptcheck.values.detectors.roles import is_matrix, starts_at_zero
from ckptcheck.values.stats import TensorStats

if TYPE_CHECKING:
    from ckptcheck.checkpoint.checkpoint import Checkpoint

LARGE, SMALL = 8.0, 1 / 16
"""The root mean square of a matrix is out of line above the one, or below the other multiple of its siblings'
median."""
INNER_FACTOR = 4.0
"""The same for a layer between the ends: against the median, and against the four nearest layers."""
ENDS, NEIGHBOURS, MIN_LAYERS = 2, 4, 8
"""Layers of an end, layers near another on either side, and layers that a stack needs for a middle."""
MAX_SUSPECTS = 4
"""Matrices of one role that are examined at least: the ones whose largest magnitude is furthest from the median."""
MIN_SIBLINGS = 4
"""Fewer other layers do not show what is usual."""
GAP = 3.0
"""The matrix has to be this many times further from the median than every other sibling."""
MAX_REFERENCES = 8
"""Siblings whose root mean square is estimated: the ones whose largest magnitude is nearest to the median."""
MAX_ROWS = 32
"""Rows that are read of a matrix: they give its root mean square to a few per cent, and the fault is a factor of 4."""


class ScaleOutlier(msgspec.Struct, frozen=True):
    """A matrix whose numbers are out of line with those of its siblings."""

    name: str
    layer: int
    role: str
    """Its name within the layer."""
    factor: float
    """Its root mean square as a multiple of its siblings' median."""


def find_scale_outliers(ckpt: Checkpoint) -> list[ScaleOutlier]:
    """Return the matrices of the layers whose scale is out of line.

    It reads rows only if a largest magnitude is out of line. Raises Skip if a file shrank since its values were read,
    OSError if reading fails.
    """
    return [outlier for stack in ckpt.layout.stacks.values() for outlier in _iter_stack(ckpt, stack)]


def _iter_stack(ckpt: Checkpoint, stack: Stack) -> Iterator[ScaleOutlier]:
    siblings: dict[tuple[str, tuple[int, ...], str], dict[int, TensorStats]] = {}
    for layer, roles in stack.layers.items():
        for role in sorted(roles):
            stats = ckpt.values.tensors.get(stack.full_name(layer, role))
            if stats is not None and stats.dtype in FLOATS and len(stats.shape) == 2 and _is_judged(stats):
                siblings.setdefault((role, stats.shape, stats.dtype), {})[layer] = stats
    for (role, _, _), by_layer in siblings.items():
        if len(by_layer) > MIN_SIBLINGS:
            for layer, factor in sorted(_find_outliers(ckpt, by_layer).items()):
                yield ScaleOutlier(by_layer[layer].name, layer, role, factor)


def _find_outliers(ckpt: Checkpoint, by_layer: dict[int, TensorStats]) -> dict[int, float]:
    """Return layer → factor, for the layers whose matrix is out of line; none if they are too many to be exceptions.

    Another kind of layer in between is no fault (Gemma 3), so fewer may be out of line by the narrower limits.
    """
    layers = sorted(by_layer)
    usual = median(stats.absmax for stats in by_layer.values())
    if not usual:
        return {}
    inner = layers[ENDS:-ENDS] if len(layers) >= MIN_LAYERS else []
    limits = {layer: (1 / INNER_FACTOR, INNER_FACTOR) if layer in inner else (SMALL, LARGE) for layer in layers}
    ratios = {layer: by_layer[layer].absmax / usual for layer in layers}
    suspects = [layer for layer, (low, high) in limits.items() if not 2 * low < ratios[layer] < high / 2]
    suspects.sort(key=lambda layer: -max(ratios[layer], 1 / ratios[layer]))
    sound = sorted(set(layers) - set(suspects), key=lambda layer: abs(by_layer[layer].absmax - usual))

    @cache
    def rms(layer: int) -> float:
        return _estimate_rms(ckpt, by_layer[layer])

    found: dict[int, float] = {}
    for layer in suspects[: max(MAX_SUSPECTS, len(layers) // 4)] if sound else ():
        references = [rms(other) for other in sound[:MAX_REFERENCES]]
        typical, (low, high) = median(references), limits[layer]
        near = sorted(set(layers) - {layer}, key=lambda other: (abs(other - layer), other))[:NEIGHBOURS]
        local = median(map(rms, near)) if layer in inner else typical
        if not min(rms(layer), local, *references) or any(low < rms(layer) / one < high for one in (typical, local)):
            continue
        factor, spread = rms(layer) / typical, max(max(typical / one, one / typical) for one in references)
        if layer in inner or max(factor, 1 / factor) >= GAP * spread:
            found[layer] = factor
    is_large = all(not SMALL < factor < LARGE for factor in found.values())
    return found if len(found) <= (len(layers) // 4 if is_large else max(1, len(layers) // 8)) else {}


def _is_judged(stats: TensorStats) -> bool:
    return (
        is_matrix(stats)
        and not stats.constant
        and not stats.nan
        and not stats.inf
        and stats.absmax > 0
        and not starts_at_zero(stats.name)
        and ".experts." not in stats.name
    )


def _estimate_rms(ckpt: Checkpoint, stats: TensorStats) -> float:
    """Estimate the root mean square of a matrix from some of its rows."""
    import numpy as np

    rows = choose_channels(stats.shape[0], MAX_ROWS)
    values = read_rows(ckpt, stats, rows, np.arange(stats.shape[1])).astype(np.float64)
    return float(np.sqrt(np.mean(values * values)))
