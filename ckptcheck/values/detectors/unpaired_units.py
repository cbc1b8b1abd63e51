"""Finds matrices of a layer whose units do not belong together: in another order, of another layer, or drawn anew in part.

Two matrices that meet in a unit learn from each other. Row j of up says what unit j looks for in the residual stream, and column
j of down what it writes there; the gradient of each grows with the activity of the other, so after training the two point along
each other far more than vectors of different units do. The same holds for gate and down, for channel j of the queries and of the
keys, and for channel j of the values and of the output projection. The measure here is the mean |cosine| of matching units over
that of units that do not match: 1 for matrices that have nothing to do with each other, 3 to 10 in trained layers.

Norms (`channel_order`) tell how large a unit is; this tells where it points, which is as many numbers as the stream has channels.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import TYPE_CHECKING

from ckptcheck.checkpoint.layout import Stack
from ckptcheck.values.channel_sample import MAX_CHANNELS, RUNS, choose_channels, find_run_starts
from ckptcheck.values.detectors.channel_order import (
    MAX_SHARE,
    MIN_LAYERS,
    find_explained,
    find_mismatched_blocks,
    find_scattered_matrices,
    iter_feed_forward_blocks,
)
from ckptcheck.values.detectors.exchanged_projections import (
    MIN_CHANNELS,
    expand_heads,
    find_exchanged_projections,
    iter_blocks,
)
from ckptcheck.values.detectors.foreign_values import find_exchanged_values
from ckptcheck.values.detectors.fresh_shares import find_fresh_shares
from ckptcheck.values.detectors.matrix_samples import read_rows
from ckptcheck.values.detectors.repeated_shares import find_repeated_share
from ckptcheck.values.stats import TensorStats

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ckptcheck.checkpoint.checkpoint import Checkpoint

USUALLY = {"feed-forward": 3.0, "values": 3.0, "queries": 2.0}
"""Kind of pair → the least measure in the median of the layers with which the kind is judged."""
HARDLY = {"feed-forward": 1.2, "values": 1.2, "queries": 1.12}
"""The measure of a pair that has nothing in common, at most. 256 units leave a deviation of 0.05, two query heads 0.03."""
CLEARLY = {"feed-forward": 1.8, "values": 1.5, "queries": 1.5}
"""The least measure of every other layer but the first and the last: what hardly differs is no outlier."""
PART_USUALLY, PART_HARDLY = 4.0, 1.25
"""The same for an eighth of the units of a feed-forward block: 32 units leave a deviation of 0.13."""
STREAM_CHANNELS, ROW_CHANNELS = 512, 2048
"""Channels of the stream that are compared, and where both matrices hold a unit in a row, which is read whole anyway."""
FEW_UNITS = 64
"""Units of a first look at every pair. Only where that shows something are all units of the sample compared."""
SUSPICIOUS, PART_SUSPICIOUS = 2.0, 2.2
"""The measure by few units, of all of them and of an eighth, up to which a pair is looked at again."""
SHIFTS = (5, 37, 59, 83)
"""How far apart the units lie that are compared as such that do not match."""
MAX_MEMBERS = 2
"""Query heads that are read of those that share a key head."""
MAX_TRACED = 2
"""Unpaired layers of a kind whose right partner is looked for in other layers."""


_Measure = tuple[float, tuple[float, ...]]
"""By how much more matching units point along each other than others, in all of the sample and in each eighth."""


@dataclass(frozen=True)
class UnpairedMatrices:
    """Matrices of a layer whose units do not belong together, as they do in other layers."""

    names: tuple[str, ...]
    """The one whose units do not belong to those of the others: most often one other."""
    measure: float
    usual: float
    """The measure in the median of the layers."""
    belongs: int | None = None
    """The layer whose second matrix the first one is paired with."""
    parts: tuple[int, ...] = ()
    """The eighths of the units that are unpaired, if it is not all of them; counted from 0."""


@dataclass(frozen=True, eq=False)
class _Pair:
    """Two matrices that meet in their units, in one layer."""

    layer: int
    first: TensorStats
    second: TensorStats
    units: tuple[NDArray[np.intp], NDArray[np.intp]]
    """The sampled units, as each of the two counts them."""
    axes: tuple[int, int]
    """The axis of each that counts units."""
    members: int = 1
    """How many query heads of each key head lie in the sample, one after the other."""


_Kind = tuple[str, ...]
"""What a pair is, ``feed-forward`` for one; its stack, and the roles of the two matrices in a layer."""
_Kinds = dict[_Kind, list[_Pair]]


def find_unpaired_matrices(ckpt: Checkpoint) -> list[UnpairedMatrices]:
    """Return the pairs of matrices whose units do not belong together where those of other layers do.

    It reads 64 rows and columns of each matrix again, and 256 where these are conspicuous; so it judges nothing on the Hub.
    The first and the last layer of a stack are not judged.

    Raises Skip if a file shrank since its values were read, OSError if reading fails.
    """
    if not ckpt.can_sample:
        return []
    measured = _measure_pairs(ckpt, _collect_pairs(ckpt, FEW_UNITS))
    again = {key: layers for key, measures in measured.items() if (layers := _list_suspicious(key[0], measures))}
    pairs = {key: found for key, found in _collect_pairs(ckpt, MAX_CHANNELS).items() if key in again} if again else {}
    more = _measure_pairs(ckpt, {key: [each for each in pairs[key] if each.layer in again[key]] for key in pairs})
    found = [unpaired for key in pairs for unpaired in _judge(ckpt, key[0], pairs[key], {**measured[key], **more[key]})]
    explained = _find_explained(ckpt) if found else set()
    return _blame(
        [
            unpaired
            for unpaired in found
            if explained.isdisjoint(unpaired.names)
            and not any(find_repeated_share(ckpt, name) is not None for name in unpaired.names)
        ]
    )


def _collect_pairs(ckpt: Checkpoint, most: int) -> _Kinds:
    """Return the pairs of each kind of which there are enough.

    most: units of a pair that are compared.
    """
    kinds: _Kinds = {}
    for stack in ckpt.layout.stacks.values():
        if len(stack.layers) >= MIN_LAYERS:
            for kind, pair in _iter_pairs(ckpt, stack, most):
                kinds.setdefault((kind, stack.prefix, *_find_roles(stack, pair)), []).append(pair)
    return {key: pairs for key, pairs in kinds.items() if len(pairs) >= MIN_LAYERS}


def _list_suspicious(kind: str, measures: dict[int, _Measure]) -> list[int]:
    """Return the layers whose pair may be unpaired by a first look; none of a kind that does not seem to be paired at all."""
    if 2 * median(whole for whole, _ in measures.values()) < USUALLY[kind]:
        return []
    return [
        layer
        for layer in sorted(measures)[1:-1]
        if measures[layer][0] <= SUSPICIOUS or (kind == "feed-forward" and min(measures[layer][1]) <= PART_SUSPICIOUS)
    ]


def _find_explained(ckpt: Checkpoint) -> set[str]:
    """Return the matrices that are unpaired for a reason that another rule reports."""
    exchanged = find_exchanged_projections(ckpt)
    return {
        *find_explained(ckpt),
        *(name for block in find_mismatched_blocks(ckpt) for name in (block.up, block.down)),
        *(matrix.name for matrix in find_scattered_matrices(ckpt)),
        *(name for pair in find_exchanged_values(ckpt) for name in (*pair.values, *pair.outputs)),
        *(share.name for share in find_fresh_shares(ckpt)),
        *(name for pair in exchanged for name in pair.tensors),
        *(name.replace(pair.first, pair.second) for pair in exchanged for name in pair.tensors),
    }


def _find_roles(stack: Stack, pair: _Pair) -> tuple[str, str]:
    """Return what the two matrices are called within each layer."""
    prefix = f"{stack.prefix}.{pair.layer}."
    return pair.first.name.removeprefix(prefix), pair.second.name.removeprefix(prefix)


def _iter_pairs(ckpt: Checkpoint, stack: Stack, most: int) -> Iterator[tuple[str, _Pair]]:
    """Yield the pairs of a stack, each with its kind. most: units of a pair that are compared."""
    for block in iter_blocks(ckpt, stack):
        units = choose_channels(block.first.shape[0], most)
        if block.query is not None:
            outer = expand_heads(ckpt, block, units)[:MAX_MEMBERS]
            inner = _repeat(units, len(outer))
            units_of_both, members = (outer.ravel(), inner), len(outer)
            yield "queries", _Pair(block.layer, block.query, block.first, units_of_both, (0, 0), members)
            yield "values", _Pair(block.layer, block.second, block.last, units_of_both[::-1], (0, 1), members)
    for layer in sorted(stack.layers):
        for _, feed_forward in iter_feed_forward_blocks(ckpt, stack, layer):
            up, axis = feed_forward.up, feed_forward.axis
            if min(up.shape) < MIN_CHANNELS:
                continue
            units = choose_channels(up.shape[axis], most)
            yield "feed-forward", _Pair(layer, up, feed_forward.down, (units, units), (axis, 1 - axis))
            if (gate := feed_forward.gate_stats) is not None:
                yield "feed-forward", _Pair(layer, gate, feed_forward.down, (units, units), (axis, 1 - axis))


def _repeat(units: NDArray[np.intp], times: int) -> NDArray[np.intp]:
    import numpy as np

    return np.tile(units, times)


def _judge(
    ckpt: Checkpoint, kind: str, pairs: list[_Pair], measured: dict[int, _Measure]
) -> Iterator[UnpairedMatrices]:
    """Yield the pairs of one kind that stand out. measured: layer → the measure of its pair."""
    usual = median(whole for whole, _ in measured.values())
    if usual < USUALLY[kind]:
        return
    inner = sorted(pairs, key=lambda pair: pair.layer)[1:-1]
    unpaired = [pair for pair in inner if measured[pair.layer][0] <= HARDLY[kind]]
    others = [measured[pair.layer][0] for pair in inner if pair not in unpaired]
    if len(unpaired) > MAX_SHARE * len(pairs) or min(others, default=0.0) < CLEARLY[kind]:
        return
    for number, pair in enumerate(unpaired):
        belongs = _trace(ckpt, pair, pairs, usual) if number < MAX_TRACED else None
        yield UnpairedMatrices((pair.first.name, pair.second.name), measured[pair.layer][0], usual, belongs=belongs)
    if kind != "feed-forward":
        return
    torn = [(pair, parts) for pair in inner if (parts := _list_unpaired_parts(measured[pair.layer], usual))]
    if len(torn) <= MAX_SHARE * len(pairs):
        for pair, parts in torn:
            worst = min(measured[pair.layer][1][part] for part in parts)
            yield UnpairedMatrices((pair.first.name, pair.second.name), worst, usual, parts=parts)


def _list_unpaired_parts(measured: tuple[float, tuple[float, ...]], usual: float) -> tuple[int, ...]:
    """Return the eighths of a pair that are unpaired, where the rest of it is paired as in other layers."""
    whole, own = measured
    rest = [measure for measure in own if measure > PART_HARDLY]
    if whole <= HARDLY["feed-forward"] or not rest or min(usual, median(rest)) < PART_USUALLY:
        return ()
    return tuple(part for part, measure in enumerate(own) if measure <= PART_HARDLY)


def _measure_pairs(ckpt: Checkpoint, kinds: _Kinds) -> dict[_Kind, dict[int, _Measure]]:
    """Return kind → layer → the measure of its pair. A matrix that is the second of several pairs, as down is, is read once."""
    alike: dict[tuple[str, int], list[tuple[_Kind, _Pair]]] = {}
    for kind, pairs in kinds.items():
        for pair in pairs:
            alike.setdefault((pair.second.name, pair.axes[1]), []).append((kind, pair))
    measured: dict[_Kind, dict[int, _Measure]] = {kind: {} for kind in kinds}
    with ThreadPoolExecutor(ckpt.jobs) as pool:
        measures = pool.map(partial(_measure_alike, ckpt), ([pair for _, pair in same] for same in alike.values()))
        for same, found in zip(alike.values(), measures, strict=True):
            for (kind, pair), measure in zip(same, found, strict=True):
                measured[kind][pair.layer] = measure
    return measured


def _measure_alike(ckpt: Checkpoint, pairs: list[_Pair]) -> list[_Measure]:
    """Return the measures of pairs with the same second matrix and units."""
    second = _read_units(ckpt, pairs[0], 1)
    return [_compare(_read_units(ckpt, pair, 0), second, pair.members) for pair in pairs]


def _read_units(ckpt: Checkpoint, pair: _Pair, side: int) -> NDArray[np.float32]:
    """Return [unit, channel of the stream] of one of the two matrices."""
    import numpy as np

    stats, axis = (pair.first, pair.second)[side], pair.axes[side]
    units, places = np.unique(pair.units[side], return_inverse=True)
    channels = choose_channels(stats.shape[1 - axis], STREAM_CHANNELS if any(pair.axes) else ROW_CHANNELS)
    values = read_rows(ckpt, stats, channels, units).T if axis else read_rows(ckpt, stats, units, channels)
    chosen: NDArray[np.float32] = np.asarray(values, np.float32)
    return chosen if np.array_equal(units, pair.units[side]) else chosen[places]


def _compare(first: NDArray[np.float32], second: NDArray[np.float32], members: int) -> _Measure:
    """Return the measure of two matrices of units, of all and of each eighth."""
    import numpy as np

    number = len(first) // members
    lengths = [np.sqrt(np.einsum("uc,uc->u", units, units)) for units in (first, second)]
    ours, theirs = (np.where(length > 0, length, 1).reshape(members, number) for length in lengths)

    def compare_shifted(shift: int) -> NDArray[np.float32]:
        """Return [member, unit]: |cosine| of each unit of the first with the one that lies so far before it in the second."""
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
    parts = np.split(own / other, find_run_starts(len(own))[1:])
    return float(own.mean()) / other, tuple(float(part.mean()) for part in parts)


def _trace(ckpt: Checkpoint, pair: _Pair, pairs: list[_Pair], usual: float) -> int | None:
    """Return the layer whose second matrix is paired with the pair's first, if there is one."""
    first = _read_units(ckpt, pair, 0)
    for other in pairs:
        if other.layer != pair.layer and other.second.shape == pair.second.shape:
            measure, _ = _compare(first, _read_units(ckpt, other, 1), pair.members)
            if measure >= usual / 2:
                return other.layer
    return None


def _blame(found: list[UnpairedMatrices]) -> list[UnpairedMatrices]:
    """Say which matrix of a feed-forward block is at fault: the one that is paired with neither of the others."""
    blamed = []
    for unpaired in found:
        siblings = [other for other in found if other.names[1] == unpaired.names[1] and other.parts == unpaired.parts]
        if len(siblings) == 1:
            blamed.append(unpaired)
        elif unpaired is siblings[0]:
            # down is paired with neither of its two partners
            names = (unpaired.names[1], *(sibling.names[0] for sibling in siblings))
            blamed.append(UnpairedMatrices(names, unpaired.measure, unpaired.usual, parts=unpaired.parts))
    return blamed
