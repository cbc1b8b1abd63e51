"""Converts between the JSON of an engine's worker and the dataclasses of the client."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from ckptcheck.live.runtime.engines.base import (
    Arrival,
    ExpertSlots,
    Kind,
    LoadedParameter,
    LoadedWeights,
    ScrambleResult,
    TensorDigest,
    UnwrittenElements,
    WeightPart,
)

if TYPE_CHECKING:
    from ckptcheck.values.tensor_part import TensorPart

Report = Mapping[str, Any]
"""The answer of one rank: its number, and a list of fields for each tensor."""
T = TypeVar("T")
Shape = tuple[int, ...]
Ranges = tuple[tuple[int, int], ...]


def _list_rows(reports: Iterable[Report], kind: type[T], key: str = "entries") -> Iterator[tuple[int, T]]:
    """Yield each rank and each row of its report, in rank order. Raises ValueError for a row of another form."""
    for report in sorted(reports, key=itemgetter("rank")):
        try:
            rows = msgspec.convert(report[key], list[kind])  # type: ignore[valid-type]
        except msgspec.ValidationError as error:
            raise ValueError(str(error)) from error
        yield from ((report["rank"], row) for row in rows)


def decode_digests(reports: Iterable[Report]) -> dict[tuple[int, str], TensorDigest]:
    """Decode the tensors that every rank reports, in rank order."""
    rows = _list_rows(reports, tuple[str, Kind, str, Shape, int, str, str, str])
    return {(rank, row[0]): TensorDigest(row[0], rank, *row[1:]) for rank, row in rows}


def decode_sums(pair: Sequence[int]) -> tuple[int, int]:
    """Return the two sums of a shard digest, which torch has as signed integers, modulo 2^64."""
    return pair[0] % (1 << 64), pair[1] % (1 << 64)


def decode_scalars(reports: Iterable[Report]) -> dict[tuple[int, str], float]:
    """Decode the numbers that every rank keeps on the host, in rank order."""
    rows = _list_rows(reports, tuple[str, bool, str])
    return {(rank, name): float(text) if is_float else int(text) for rank, (name, is_float, text) in rows}


def decode_scramble(reports: Iterable[Report]) -> ScrambleResult:
    """Decode the tensors that every rank scrambled, and the ones that it skipped."""
    reports = list(reports)
    return ScrambleResult(
        frozenset(_list_rows(reports, str, "names")),
        {(report["rank"], name): reason for report in reports for name, reason in report["left"].items()},
    )


def decode_unwritten(reports: Iterable[Report]) -> dict[tuple[int, str], UnwrittenElements]:
    """Decode the elements that every rank found unwritten, in rank order."""
    rows = _list_rows(reports, tuple[str, int, int, Ranges, int, Ranges])
    return {(rank, row[0]): UnwrittenElements(*row[1:]) for rank, row in rows}


def decode_arrivals(reports: Iterable[Report]) -> LoadedWeights:
    """Decode the arrivals at every rank's loader, in rank order and order of arrival, and the parameters after it."""
    reports = list(reports)
    arrived = _list_rows(reports, tuple[str, str, Shape, str])
    loaded = _list_rows(reports, tuple[str, str, str], "loaded")
    return LoadedWeights(
        tuple(Arrival(row[0], rank, *row[1:]) for rank, row in arrived),
        {(rank, row[0]): LoadedParameter(*row[1:]) for rank, row in loaded},
        max((report["seconds"] for report in reports), default=0.0),
    )


def decode_slots(reports: Iterable[Report]) -> dict[tuple[int, str], ExpertSlots]:
    """Decode the expert in each slot of every rank, in rank order."""
    rows = _list_rows(reports, tuple[str, tuple[int, ...], int, tuple[str, ...]])
    return {(rank, row[0]): ExpertSlots(*row[1:]) for rank, row in rows}


def group_by_rank(names: Iterable[tuple[int, str]], ranks: int) -> list[list[str]]:
    """Return the names of each rank."""
    names_by_rank: list[list[str]] = [[] for _ in range(ranks)]
    for rank, name in names:
        names_by_rank[rank].append(name)
    return names_by_rank


def encode_parts(parts: Iterable[WeightPart], ranks: int) -> list[list[list[Any]]]:
    """Return the parts of each rank in their order, as `inventory.sum_parts` takes them."""
    by_rank: list[list[list[Any]]] = [[] for _ in range(ranks)]
    for part in parts:
        by_rank[part.rank].append(
            [part.name, part.begin, list(part.shape), part.pitch, list(part.origin), list(part.whole)]
        )
    return by_rank


def encode_pieces(pieces: Mapping[str, Sequence[TensorPart]]) -> dict[str, list[list[Any]]]:
    """Return the pieces of each joined weight as `shard_digest.sum_pieces` takes them, in elements."""
    return {
        name: [
            [
                piece.offset // piece.itemsize,
                list(piece.extent),
                [stride // piece.itemsize for stride in piece.strides],
                list(piece.origin),
                list(piece.shape),
            ]
            for piece in each
        ]
        for name, each in pieces.items()
    }


def decode_part_sums(
    parts: Iterable[WeightPart], sums_by_rank: Iterable[Sequence[Sequence[int]]]
) -> list[tuple[int, int]]:
    """Merge the sums of each rank's parts into one list, in the order of the parts."""
    waiting = [iter(sums) for sums in sums_by_rank]
    return [decode_sums(next(waiting[part.rank])) for part in parts]
