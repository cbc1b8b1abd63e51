"""Finds layers that are nearly the same as another one, or the mean of two: their matrices point in the same direction.

The matrices of two layers are numbers that were drawn apart and trained apart: as vectors of all their numbers they are all but
orthogonal, whatever the layers have in common. A copy with noise, a copy that was trained a little, and the mean of two layers are
not. Two matrices of each layer are compared, by a few rows of each.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from ckptcheck.checkpoint.layout import Stack
from ckptcheck.values.channel_sample import choose_channels
from ckptcheck.values.detectors.channel_order import MAX_SHARE, MIN_LAYERS
from ckptcheck.values.detectors.duplicate_tensors import LAYER_SHARING, find_equal_layers
from ckptcheck.values.detectors.matrix_samples import FLOATS, read_rows
from ckptcheck.values.stats import TensorStats

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ckptcheck.checkpoint.checkpoint import Checkpoint

NEAR, APART = 0.5, 0.3
"""The least cosine of layers that are nearly the same, and the largest of all others. Trained layers have at most 0.14."""
RUNS, RUN_ROWS, COLUMNS = 4, 4, 1024
"""Rows and columns of each matrix that are read: 16,384 numbers, whose cosine is 0.01 where nothing is alike."""
LEAST_CHANNELS = 64


@dataclass(frozen=True)
class NearCopy:
    """A layer that is nearly the same as another, or the mean of two others."""

    layer: int
    others: tuple[int, ...]
    """One other layer, or the two of which it is the mean."""
    roles: tuple[str, str]
    """The two matrices that were compared."""
    cosines: tuple[float, ...]
    """With each of the others: the smaller one of the two matrices."""
    usual: float
    """The largest cosine of two layers that are apart."""


def find_near_copies(ckpt: Checkpoint) -> dict[str, list[NearCopy]]:
    """Return the prefix of a stack → its layers that are nearly the same as others.

    Nothing is said of a stack in which a quarter of the layers are: it was made deeper on purpose. Nor on the Hub, as it reads 16
    rows of each of two matrices again. Raises Skip if a file shrank since its values were read, OSError if reading fails.
    """
    config = ckpt.config
    if not ckpt.can_sample or (config is not None and any(config.text.get(name) for name in LAYER_SHARING)):
        return {}
    found = {}
    for stack in ckpt.layout.stacks.values():
        if len(stack.layers) >= MIN_LAYERS and (copies := _judge(ckpt, stack)):
            found[stack.prefix] = copies
    return found


def _judge(ckpt: Checkpoint, stack: Stack) -> list[NearCopy]:
    import numpy as np

    roles = _choose_roles(ckpt, stack)
    if roles is None:
        return []
    matrices = [dict(_iter_matrices(ckpt, stack, role)) for role in roles]
    layers = sorted(matrices[0].keys() & matrices[1].keys())
    cosines = np.minimum(*(_compare(ckpt, [found[layer] for layer in layers]) for found in matrices))
    np.fill_diagonal(cosines, 0)
    apart = cosines[cosines < NEAR]
    usual = float(apart.max(initial=0.0))
    near = {
        layers[at]: {layers[other]: float(cosines[at, other]) for other in np.flatnonzero(row).tolist()}
        for at, row in enumerate(cosines >= NEAR)
        if row.any()
    }
    if not near or usual > APART or len(near) > MAX_SHARE * len(layers):
        return []
    equal = find_equal_layers(ckpt) if ckpt.components.stack is stack else {}
    return [copy for copy in _name_copies(near, roles, usual) if equal.get(max(copy.layer, *copy.others)) is None]


def _name_copies(near: dict[int, dict[int, float]], roles: tuple[str, str], usual: float) -> Iterator[NearCopy]:
    """Yield each pair of layers once, and a layer that lies between two others as their mean."""
    means = {
        layer: tuple(sorted(others))
        for layer, others in near.items()
        if len(others) == 2 and max(others) not in near[min(others)]
    }
    for layer, between in means.items():
        yield NearCopy(layer, between, roles, tuple(near[layer][other] for other in between), usual)
    for layer, others in near.items():
        for other, cosine in others.items():
            if other < layer and not {layer, other} & means.keys():
                yield NearCopy(layer, (other,), roles, (cosine,), usual)


def _choose_roles(ckpt: Checkpoint, stack: Stack) -> tuple[str, str] | None:
    """Return the largest matrix that all layers have, and the largest one of another module; None where there are no two."""
    shared = set.intersection(*(set(roles) for roles in stack.layers.values()))
    sizes = {}
    for role in shared:
        if "{}" in role or not role.endswith("weight"):
            continue
        found = [stats for _, stats in _iter_matrices(ckpt, stack, role)]
        if len(found) == len(stack.layers) and len({stats.shape for stats in found}) == 1:
            sizes[role] = found[0].shape[0] * found[0].shape[1]
    order = sorted(sizes, key=lambda role: (-sizes[role], role))
    others = [role for role in order if role.partition(".")[0] != order[0].partition(".")[0]]
    return (order[0], others[0]) if others else None


def _iter_matrices(ckpt: Checkpoint, stack: Stack, role: str) -> Iterator[tuple[int, TensorStats]]:
    """Yield layer and statistics of a matrix of each layer that can be compared."""
    for layer in stack.layers:
        stats = ckpt.values.tensors.get(stack.full_name(layer, role))
        if (
            stats is not None
            and stats.dtype in FLOATS
            and len(stats.shape) == 2
            and min(stats.shape) >= LEAST_CHANNELS
            and not (stats.nan or stats.inf or stats.constant)
        ):
            yield layer, stats


def _compare(ckpt: Checkpoint, matrices: list[TensorStats]) -> NDArray[np.float32]:
    """Return the |cosine| of each matrix with each other."""
    import numpy as np

    with ThreadPoolExecutor(ckpt.jobs) as pool:
        vectors = np.stack([*pool.map(partial(_read_sample, ckpt), matrices)])
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    vectors /= np.where(lengths > 0, lengths, 1)
    cosines: NDArray[np.float32] = np.abs(vectors @ vectors.T)
    return cosines


def _read_sample(ckpt: Checkpoint, stats: TensorStats) -> NDArray[np.float32]:
    """Return some numbers of a matrix as one vector."""
    import numpy as np

    starts = [run * (stats.shape[0] - RUN_ROWS) // (RUNS - 1) for run in range(RUNS)]
    rows = np.add.outer(starts, np.arange(RUN_ROWS)).ravel()
    values = read_rows(ckpt, stats, rows, choose_channels(stats.shape[1], COLUMNS))
    return np.asarray(values, np.float32).ravel()
