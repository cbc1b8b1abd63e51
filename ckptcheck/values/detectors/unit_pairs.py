"""Measures how much two matrices of a layer that meet in their units point along each other there.

Two matrices that meet in a unit learn from each other. Row j of up says what unit j looks for in the residual stream, and column
j of down what it writes there; the gradient of each grows with the activity of the other, so after training the two point along
each other far more than vectors of different units do. The same holds for gate and down, for channel j of the queries and of the
keys, and for channel j of the values and of the output projection. The measure is the mean |cosine| of matching units,
divided by the mean |cosine| of units that do not match: 1 for unrelated matrices, 3 to 10 in trained layers.

Norms show how large a unit is; this measure uses its direction, which has as many numbers as the stream has channels.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from ckptcheck.checkpoint.layout import Stack
from ckptcheck.values.channel_sample import MAX_CHANNELS, RUNS, choose_channels
from ckptcheck.values.detectors.exchanged_projections import can_judge, expand_heads, iter_blocks
from ckptcheck.values.detectors.matrix_samples import MatrixPart, read_rows
from ckptcheck.values.detectors.residual_stream import MIN_CHANNELS, MIN_LAYERS
from ckptcheck.values.stats import TensorStats

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ckptcheck.checkpoint.checkpoint import Checkpoint

UP_AND_DOWN = (
    ("up_proj", "down_proj"),
    ("w3", "w2"),
    ("fc1", "fc2"),
    ("fc_in", "fc_out"),
    ("c_fc", "c_proj"),
    ("lin1", "lin2"),
    ("linear1", "linear2"),
    ("wi_1", "wo"),
    ("wi", "wo"),
    ("dense_h_to_4h", "dense_4h_to_h"),
    ("intermediate.dense", "output.dense"),
    ("intermediate_dense", "output_dense"),
)
"""Names of the matrix that computes the units of a feed-forward block (up, if there is a gate), and of the one that
reads them."""
GATES = {"up_proj": "gate_proj", "w3": "w1", "wi_1": "wi_0"}
SHIFTS = (5, 37, 59, 83)
"""Distance of the units that serve as units that do not match."""


class SampleSize(msgspec.Struct, frozen=True):
    """The part of each pair that is compared."""

    units: int
    members: int
    """Query heads that are compared for each key head."""
    stream_channels: int
    row_channels: int
    """Channels of the stream if both matrices hold a unit in a row, which is read whole anyway."""


FIRST_LOOK = SampleSize(units=64, members=1, stream_channels=256, row_channels=512)
"""The first look at every pair takes a third of the time: unpaired units are unpaired in any sample."""
WHOLE = SampleSize(units=MAX_CHANNELS, members=2, stream_channels=512, row_channels=2048)
"""The second look, if the first one shows something."""

Measure = tuple[float, tuple[float, ...]]
"""How many times more matching units point along each other than others, in all of the sample and in each eighth."""


class Pair(msgspec.Struct, frozen=True, eq=False):
    """Two matrices that meet in their units, in one layer."""

    sample: SampleSize
    layer: int
    first: TensorStats
    second: TensorStats
    units: tuple[NDArray[np.intp], NDArray[np.intp]]
    """The sampled units, as each of the two matrices numbers them."""
    axes: tuple[int, int]
    """The axis of each that counts units."""
    members: int = 1
    """How many query heads of each key head the sample holds, one after the other."""


Kind = tuple[str, ...]
"""Kind of the pair, such as ``feed-forward``; its stack, and the roles of the two matrices in a layer."""
Kinds = dict[Kind, list[Pair]]


def collect_pairs(ckpt: Checkpoint, sample: SampleSize) -> Kinds:
    """Return the pairs of each kind with enough pairs."""
    kinds: Kinds = {}
    for stack in ckpt.layout.stacks.values():
        if len(stack.layers) >= MIN_LAYERS:
            for kind, pair in _iter_pairs(ckpt, stack, sample):
                kinds.setdefault((kind, stack.prefix, *_find_roles(stack, pair)), []).append(pair)
    return {key: pairs for key, pairs in kinds.items() if len(pairs) >= MIN_LAYERS}


def _find_roles(stack: Stack, pair: Pair) -> tuple[str, str]:
    """Return the names of the two matrices within each layer."""
    prefix = f"{stack.prefix}.{pair.layer}."
    return pair.first.name.removeprefix(prefix), pair.second.name.removeprefix(prefix)


def _iter_pairs(ckpt: Checkpoint, stack: Stack, sample: SampleSize) -> Iterator[tuple[str, Pair]]:
    """Yield the pairs of a stack, each with its kind."""
    import numpy as np

    for block in iter_blocks(ckpt, stack):
        units = choose_channels(block.first.shape[0], sample.units)
        if block.query is not None:
            outer = expand_heads(ckpt, block, units)[: sample.members]
            inner = np.tile(units, len(outer))
            units_of_both, members = (outer.ravel(), inner), len(outer)
            yield "queries", Pair(sample, block.layer, block.query, block.first, units_of_both, (0, 0), members)
            yield "values", Pair(sample, block.layer, block.second, block.last, units_of_both[::-1], (0, 1), members)
    for layer in sorted(stack.layers):
        for matrix, down, axis in _iter_feed_forward(ckpt, stack, layer):
            units = choose_channels(matrix.shape[axis], sample.units)
            yield "feed-forward", Pair(sample, layer, matrix, down, (units, units), (axis, 1 - axis))


def _iter_feed_forward(ckpt: Checkpoint, stack: Stack, layer: int) -> Iterator[tuple[TensorStats, TensorStats, int]]:
    """Yield each up and gate of a layer, with its down and with the axis that counts units: 0 for torch.nn.Linear, 1 for Conv1D."""
    tensors, names = ckpt.values.tensors, stack.layers[layer]
    for role in sorted(names):
        for up, down in UP_AND_DOWN:
            prefix = role.removesuffix(f"{up}.weight")
            if prefix == role or (prefix and not prefix.endswith(".")) or f"{prefix}{down}.weight" not in names:
                continue
            if up == "wi" and f"{prefix}wi_1.weight" in names:
                continue
            first, last, gate = (
                tensors.get(stack.full_name(layer, f"{prefix}{part}.weight")) for part in (up, down, GATES.get(up, ""))
            )
            if first is None or last is None or not all(can_judge(ckpt, stats) for stats in (first, last)):
                continue
            if first.shape != last.shape[::-1] or first.shape[0] == first.shape[1] or min(first.shape) < MIN_CHANNELS:
                continue
            axis = 0 if first.shape[0] > first.shape[1] else 1
            yield first, last, axis
            if gate is not None and gate.shape == first.shape and can_judge(ckpt, gate):
                yield gate, last, axis
            break


def measure_pairs(ckpt: Checkpoint, kinds: Kinds) -> dict[Kind, dict[int, Measure]]:
    """Return kind → layer → the measure of its pair. A second matrix of several pairs (down) is read once."""
    alike: dict[tuple[str, int], list[tuple[Kind, Pair]]] = {}
    for kind, pairs in kinds.items():
        for pair in pairs:
            alike.setdefault((pair.second.name, pair.axes[1]), []).append((kind, pair))
    measured: dict[Kind, dict[int, Measure]] = {kind: {} for kind in kinds}
    with ThreadPoolExecutor(ckpt.jobs) as pool:
        measures = pool.map(partial(_measure_alike, ckpt), ([pair for _, pair in same] for same in alike.values()))
        for same, found in zip(alike.values(), measures, strict=True):
            for (kind, pair), measure in zip(same, found, strict=True):
                measured[kind][pair.layer] = measure
    return measured


def _measure_alike(ckpt: Checkpoint, pairs: list[Pair]) -> list[Measure]:
    """Return the measures of pairs with the same second matrix and units."""
    second = read_units(ckpt, pairs[0], 1)
    return [compare_units(read_units(ckpt, pair, 0), second, pair.members) for pair in pairs]


def choose_part(pair: Pair, side: int) -> MatrixPart:
    """Return the part of one of the two matrices that is compared."""
    import numpy as np

    stats, axis = (pair.first, pair.second)[side], pair.axes[side]
    most = pair.sample.stream_channels if any(pair.axes) else pair.sample.row_channels
    channels, units = choose_channels(stats.shape[1 - axis], most), np.unique(pair.units[side])
    return MatrixPart(stats, channels, units) if axis else MatrixPart(stats, units, channels)


def read_units(ckpt: Checkpoint, pair: Pair, side: int) -> NDArray[np.float32]:
    """Return one of the two matrices as [unit, channel of the stream]."""
    import numpy as np

    values = read_rows(ckpt, *choose_part(pair, side))
    chosen: NDArray[np.float32] = np.asarray(values.T if pair.axes[side] else values, np.float32)
    units, places = np.unique(pair.units[side], return_inverse=True)
    return chosen if np.array_equal(units, pair.units[side]) else chosen[places]


def compare_units(first: NDArray[np.float32], second: NDArray[np.float32], members: int) -> Measure:
    """Return the measure of two matrices of units: of all units and of each eighth."""
    import numpy as np

    number = len(first) // members
    lengths = [np.sqrt(np.einsum("uc,uc->u", units, units)) for units in (first, second)]
    ours, theirs = (np.where(length > 0, length, 1).reshape(members, number) for length in lengths)

    def compare_shifted(shift: int) -> NDArray[np.float32]:
        """Return [member, unit]: |cosine| of each unit of the first and the unit so far before it in the second."""
        products = np.empty((members, number), np.float32)
        for member in range(members):
            begin, middle, end = member * number, member * number + shift, (member + 1) * number
            np.einsum("uc,uc->u", first[middle:end], second[begin : end - shift], out=products[member, shift:])
            np.einsum("uc,uc->u", first[begin:middle], second[end - shift : end], out=products[member, :shift])
        cosines: NDArray[np.float32] = np.abs(products / ours / np.roll(theirs, shift, axis=1))
        return cosines

    own = compare_shifted(0).mean(0)
    other = float(np.mean([compare_shifted(shift % number).mean() for shift in SHIFTS]))
    if not other > 0:
        return 0.0, (0.0,) * RUNS
    parts = np.split(own / other, [part * len(own) // RUNS for part in range(1, RUNS)])
    return float(own.mean()) / other, tuple(float(part.mean()) for part in parts)
