"""Keeps some bytes of each tensor while the values of an object store are scanned, where each later read is a request.

The places are those that detectors read first (`detectors.first_reads` lists them). A detector that asks for a place that was
kept gets it from memory; it reads any other place from the file, so what is kept changes no result.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Runs = tuple[tuple[int, int], ...]
"""[begin, end) of each run of neighbours, in order."""


class Cut(msgspec.Struct, array_like=True, frozen=True):
    """Some rows of a matrix, and some of their bytes."""

    rows: Runs
    columns: Runs
    """In bytes from the start of a row."""

    @property
    def nbytes(self) -> int:
        """Bytes of the cut."""
        return sum(end - begin for begin, end in self.rows) * sum(end - begin for begin, end in self.columns)


class Places(msgspec.Struct, array_like=True, frozen=True):
    """The places of a tensor that are kept."""

    spans: Runs
    """[begin, end) in bytes of the tensor."""
    width: int = 0
    """Bytes of a row, if there are cuts; the pieces of the tensor are then whole rows."""
    cuts: tuple[Cut, ...] = ()

    @property
    def nbytes(self) -> int:
        """Bytes that are kept."""
        return sum(end - begin for begin, end in self.spans) + sum(cut.nbytes for cut in self.cuts)


class Kept(msgspec.Struct, frozen=True):
    """The places of a tensor, with their bytes."""

    places: Places
    parts: list[bytes]
    """One for each span, then one for each cut."""

    def find_span(self, start: int, length: int) -> bytes | None:
        """Return the bytes of a place; None if it was not kept."""
        for (begin, end), part in zip(self.places.spans, self.parts, strict=False):
            if begin <= start and start + length <= end:
                return part[start - begin : start - begin + length]
        return None

    def find_cut(self, rows: Runs, columns: Runs) -> bytes | None:
        """Return the bytes of a cut, row by row; None if it was not kept."""
        for cut, part in zip(self.places.cuts, self.parts[len(self.places.spans) :], strict=True):
            if cut.rows == rows and cut.columns == columns:
                return part
        return None


def take_places(raw: NDArray[np.uint8], places: Places, start: int) -> list[bytes]:
    """Return what a piece of a tensor holds of each place.

    raw: the bytes of the piece; whole rows if there are cuts.
    start: the first byte of the piece within the tensor.
    """
    import numpy as np

    parts = [_clip(raw, begin, end, start).tobytes() for begin, end in places.spans]
    if places.cuts:
        matrix, first = raw.reshape(-1, places.width), start // places.width
        for cut in places.cuts:
            runs = [part for begin, end in cut.rows if len(part := _clip(matrix, begin, end, first))]
            parts.append(
                b"".join(
                    np.concatenate([run[:, begin:end] for begin, end in cut.columns], axis=1).tobytes() for run in runs
                )
            )
    return parts


def _clip(array: NDArray[np.uint8], begin: int, end: int, start: int) -> NDArray[np.uint8]:
    """Return the part of [begin, end) that lies in an array that begins at `start`."""
    return array[max(begin - start, 0) : max(end - start, 0)]


def count_places(places: Places, start: int, nbytes: int) -> list[int]:
    """Return how many bytes `take_places` returns of each place."""
    counts = [_overlap(begin, end, start, start + nbytes) for begin, end in places.spans]
    for cut in places.cuts:
        first, last = start // places.width, (start + nbytes) // places.width
        columns = sum(end - begin for begin, end in cut.columns)
        counts.append(columns * sum(_overlap(begin, end, first, last) for begin, end in cut.rows))
    return counts


def _overlap(begin: int, end: int, first: int, last: int) -> int:
    return max(min(end, last) - max(begin, first), 0)


def join_places(places: Places, pieces: Sequence[list[bytes]]) -> Kept:
    """Return the places of a tensor. pieces: what each piece held of them, in order."""
    return Kept(places, [b"".join(parts) for parts in zip(*pieces, strict=True)])


def merge_spans(spans: Iterable[tuple[int, int]], nbytes: int) -> Runs:
    """Return spans sorted, without overlaps, and cut to a tensor of so many bytes."""
    merged: list[tuple[int, int]] = []
    for begin, end in sorted((max(begin, 0), min(end, nbytes)) for begin, end in spans):
        if merged and begin <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(end, merged[-1][1])
        elif begin < end:
            merged.append((begin, end))
    return tuple(merged)
