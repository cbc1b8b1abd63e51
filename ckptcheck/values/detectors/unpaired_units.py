"""Finds matrices of a layer whose units do not belong together: in another order, of another layer, or drawn anew in part.

In trained layers they point along each other (`unit_pairs`). A pair is reported if it does not, while the pairs of all
other layers do.
"""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median
from typing import TYPE_CHECKING

import msgspec

from ckptcheck.values.detectors.exchanged_projections import find_exchanged_projections
from ckptcheck.values.detectors.repeated_shares import find_repeated_share
from ckptcheck.values.detectors.residual_stream import MAX_SHARE, find_explained, find_scattered_matrices
from ckptcheck.values.detectors.unit_pairs import (
    FIRST_LOOK,
    WHOLE,
    Measure,
    Pair,
    collect_pairs,
    compare_units,
    measure_pairs,
    read_units,
)

if TYPE_CHECKING:
    from ckptcheck.checkpoint.checkpoint import Checkpoint

USUALLY = {"feed-forward": 3.0, "values": 3.0, "queries": 2.0}
"""Kind of pair → the measure that the median layer needs, or the kind is not judged."""
HARDLY = {"feed-forward": 1.2, "values": 1.2, "queries": 1.12}
"""Upper bound for the measure of an unrelated pair. 256 units leave a deviation of 0.05, two query heads 0.03."""
CLEARLY = {"feed-forward": 1.8, "values": 1.5, "queries": 1.5}
"""Lower bound for every other layer but the first and the last: a pair that hardly differs from them is no outlier."""
PART_USUALLY, PART_HARDLY = 4.0, 1.25
"""The same for an eighth of the units of a feed-forward block: 32 units leave a deviation of 0.13."""
SUSPICIOUS, PART_SUSPICIOUS = 2.0, 2.2
"""A pair gets a second look if the first measures at most this, over all units or over an eighth."""
MAX_TRACED = 2
"""Unpaired layers of a kind whose right partner is searched in other layers: each is compared with all of them."""


class UnpairedMatrices(msgspec.Struct, frozen=True):
    """Matrices of a layer whose units do not belong together, although they do in other layers."""

    names: tuple[str, ...]
    """The matrices whose units do not belong to the first one's: usually one."""
    measure: float
    usual: float
    """The measure in the median of the layers."""
    belongs: int | None = None
    """The layer whose second matrix is the first one's partner."""
    parts: tuple[int, ...] = ()
    """The unpaired eighths of the units, counted from 0; empty if all are."""


def find_unpaired_matrices(ckpt: Checkpoint) -> list[UnpairedMatrices]:
    """Return the pairs of matrices whose units do not belong together, while other layers' units do.

    It reads 64 rows and columns of each matrix again, and 256 if these are conspicuous; so it judges nothing on the
    Hub. It does not judge the first and the last layer of a stack.

    Raises Skip if a file shrank since its values were read, OSError if reading fails.
    """
    if not ckpt.can_sample:
        return []
    suspicious = {
        kind: layers
        for kind, measures in measure_pairs(ckpt, collect_pairs(ckpt, FIRST_LOOK)).items()
        if (layers := _list_suspicious(kind[0], measures))
    }
    if not suspicious:
        return []
    pairs = {kind: found for kind, found in collect_pairs(ckpt, WHOLE).items() if kind in suspicious}
    some = {kind: [pair for pair in pairs[kind] if pair.layer in suspicious[kind]] for kind in pairs}
    measured = {kind: found for kind, found in measure_pairs(ckpt, some).items() if _has_unpaired(kind[0], found)}
    others = {kind: [pair for pair in pairs[kind] if pair.layer not in suspicious[kind]] for kind in measured}
    for kind, measures in measure_pairs(ckpt, others).items():
        measured[kind].update(measures)
    found = [
        unpaired for kind, measures in measured.items() for unpaired in _judge(ckpt, kind[0], pairs[kind], measures)
    ]
    explained = _find_explained(ckpt) if found else set()
    return _blame(
        [
            unpaired
            for unpaired in found
            if explained.isdisjoint(unpaired.names)
            and not any(find_repeated_share(ckpt, name) is not None for name in unpaired.names)
        ]
    )


def _list_suspicious(kind: str, measures: dict[int, Measure]) -> list[int]:
    """Return the layers whose pair may be unpaired by a first look; none if the kind does not seem paired at all."""
    if 2 * median(whole for whole, _ in measures.values()) < USUALLY[kind]:
        return []
    return [
        layer
        for layer in sorted(measures)[1:-1]
        if measures[layer][0] <= SUSPICIOUS or (kind == "feed-forward" and min(measures[layer][1]) <= PART_SUSPICIOUS)
    ]


def _has_unpaired(kind: str, measures: dict[int, Measure]) -> bool:
    """Whether a pair is unpaired by the second look, as a whole or in an eighth."""
    return any(
        whole <= HARDLY[kind] or (kind == "feed-forward" and min(parts) <= PART_HARDLY)
        for whole, parts in measures.values()
    )


def _find_explained(ckpt: Checkpoint) -> set[str]:
    """Return the matrices that are unpaired for a reason that another rule reports."""
    exchanged = find_exchanged_projections(ckpt)
    return {
        *find_explained(ckpt),
        *(matrix.name for matrix in find_scattered_matrices(ckpt)),
        *(name for pair in exchanged for name in pair.tensors),
        *(name.replace(pair.first, pair.second) for pair in exchanged for name in pair.tensors),
    }


def _judge(ckpt: Checkpoint, kind: str, pairs: list[Pair], measured: dict[int, Measure]) -> Iterator[UnpairedMatrices]:
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
    """Return the unpaired eighths of a pair, if the rest of it is paired as in other layers."""
    whole, own = measured
    rest = [measure for measure in own if measure > PART_HARDLY]
    if whole <= HARDLY["feed-forward"] or not rest or min(usual, median(rest)) < PART_USUALLY:
        return ()
    return tuple(part for part, measure in enumerate(own) if measure <= PART_HARDLY)


def _trace(ckpt: Checkpoint, pair: Pair, pairs: list[Pair], usual: float) -> int | None:
    """Return the layer whose second matrix is the partner of the pair's first, if any."""
    first = read_units(ckpt, pair, 0)
    for other in pairs:
        if other.layer != pair.layer and other.second.shape == pair.second.shape:
            measure, _ = compare_units(first, read_units(ckpt, other, 1), pair.members)
            if measure >= usual / 2:
                return other.layer
    return None


def _blame(found: list[UnpairedMatrices]) -> list[UnpairedMatrices]:
    """Return the matrix of a feed-forward block that is at fault: the one that is paired with neither of the others."""
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
