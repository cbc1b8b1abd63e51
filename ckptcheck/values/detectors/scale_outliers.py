"""Finds matrices whose numbers are all many times as large, or as small, as those of the same matrix in other layers.

The value pass knows the largest magnitude of every tensor. If it is out of line, some rows of the matrix and of its
siblings are read, and the root mean square decides: one large number moves the maximum, but hardly the root mean
square.

The first and the last layers of trained models differ most from the others. Between them a matrix is compared with its
nearest neighbours as well, which allows narrower limits.
"""

from __future__ import annotations

from collections.abc import Iterator
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
"""Matrices of one role that are examined between the ends: the ones whose largest magnitude is furthest from the
median."""
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
        usual = median(stats.absmax for stats in by_layer.values())
        if len(by_layer) <= MIN_SIBLINGS or not usual:
            continue
        found = [
            ScaleOutlier(stats.name, layer, role, factor) for layer, stats, factor in _iter_far(ckpt, by_layer, usual)
        ]
        known = {outlier.layer for outlier in found}
        found += [
            ScaleOutlier(by_layer[layer].name, layer, role, factor)
            for layer, factor in _find_between_ends(ckpt, by_layer, usual).items()
            if layer not in known
        ]
        yield from sorted(found, key=lambda outlier: outlier.layer)


def _iter_far(
    ckpt: Checkpoint, by_layer: dict[int, TensorStats], usual: float
) -> Iterator[tuple[int, TensorStats, float]]:
    """Yield the layers that are out of line, at the ends or between them."""
    suspects = {layer: stats for layer, stats in by_layer.items() if not SMALL * 2 < stats.absmax / usual < LARGE / 2}
    # More than a quarter of the layers are no exception.
    if not suspects or 4 * len(suspects) > len(by_layer):
        return
    others = sorted(
        (stats for layer, stats in by_layer.items() if layer not in suspects),
        key=lambda stats: abs(stats.absmax - usual),
    )
    references = [_estimate_rms(ckpt, stats) for stats in others[:MAX_REFERENCES]]
    typical = median(references)
    spread = max(max(typical / rms, rms / typical) for rms in references) if min(references) else float("inf")
    for layer, stats in suspects.items():
        factor = _estimate_rms(ckpt, stats) / typical if typical else 1.0
        if (factor >= LARGE or 0 < factor <= SMALL) and max(factor, 1 / factor) >= GAP * spread:
            yield layer, stats, factor


def _find_between_ends(ckpt: Checkpoint, by_layer: dict[int, TensorStats], usual: float) -> dict[int, float]:
    """Return layer → factor, for the layers between the ends that are out of line with the median and their neighbours.

    Empty if more than an eighth of the layers are out of line: another kind of layer in between is no fault (Gemma 3).
    """
    layers = sorted(by_layer)
    if len(layers) < MIN_LAYERS:
        return {}
    distances = {
        layer: max(by_layer[layer].absmax / usual, usual / by_layer[layer].absmax) for layer in layers[ENDS:-ENDS]
    }
    suspects = sorted(
        (layer for layer in distances if distances[layer] > INNER_FACTOR / 2), key=lambda layer: -distances[layer]
    )
    found: dict[int, float] = {}
    rms: dict[int, float] = {}

    def typical_of(chosen: list[int]) -> float:
        for layer in chosen:
            if layer not in rms:
                rms[layer] = _estimate_rms(ckpt, by_layer[layer])
        return median(rms[layer] for layer in chosen)

    for layer in suspects[:MAX_SUSPECTS]:
        others = [other for other in layers if other != layer]
        near = sorted(others, key=lambda other: abs(other - layer))[:NEIGHBOURS]
        usual_ones = sorted(others, key=lambda other: abs(by_layer[other].absmax - usual))[:MAX_REFERENCES]
        own, local, overall = typical_of([layer]), typical_of(near), typical_of(usual_ones)
        if not own or not local or not overall:
            continue
        if min(own / local, own / overall) >= INNER_FACTOR or max(own / local, own / overall) <= 1 / INNER_FACTOR:
            found[layer] = own / overall
    return found if len(found) <= max(1, len(layers) // 8) else {}


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
