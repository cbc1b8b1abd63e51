"""The places of a tensor are kept whole, in whichever pieces a pass reads it."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from ckptcheck.values.kept_places import Cut, Places, join_places, merge_spans
from ckptcheck.values.worker import Piece, fits_piece, scan_pieces

ROWS, WIDTH = 40, 24
MATRIX = np.random.default_rng(0).integers(1, 256, (ROWS, WIDTH), np.uint8)
PLACES = Places(
    ((0, 30), (400, 560)),
    WIDTH,
    (Cut(((0, 3), (9, 10), (30, 40)), ((0, 4), (20, 24))), Cut(((12, 13),), ((5, 9),))),
)


def cut_pieces(*rows: int) -> list[Piece]:
    """Return the pieces of the matrix that begin at these rows."""
    ends = (*rows, ROWS)
    return [
        Piece(begin * WIDTH, (end - begin) * WIDTH, "U8", 0, begin * WIDTH, kept=PLACES)
        for begin, end in zip((0, *rows), ends, strict=True)
    ]


@pytest.mark.parametrize("rows", [(), (1,), (12, 13), (2, 9, 17, 31, 39)])
def test_places_are_joined_from_the_pieces(rows: tuple[int, ...]) -> None:
    pieces = cut_pieces(*rows)
    chunks = scan_pieces(MATRIX.ravel(), 0, pieces)
    assert all(map(fits_piece, chunks, pieces))
    kept = join_places(PLACES, [chunk.kept for chunk in chunks])
    assert sum(map(len, kept.parts)) == PLACES.nbytes
    for begin, end in PLACES.spans:
        assert kept.find_span(begin + 3, end - begin - 5) == MATRIX.ravel()[begin + 3 : end - 2].tobytes()
    for cut in PLACES.cuts:
        own = [np.concatenate([np.arange(*run) for run in runs]) for runs in (cut.rows, cut.columns)]
        assert kept.find_cut(cut.rows, cut.columns) == MATRIX[np.ix_(*own)].tobytes()


def test_other_places_were_not_kept() -> None:
    kept = join_places(PLACES, [chunk.kept for chunk in scan_pieces(MATRIX.ravel(), 0, cut_pieces())])
    assert [kept.find_span(*place) for place in ((29, 2), (399, 4), (600, 1))] == [None] * 3
    assert kept.find_cut(PLACES.cuts[0].rows, PLACES.cuts[1].columns) is None


def test_an_answer_with_fewer_bytes_does_not_fit() -> None:
    """Another machine may answer with anything."""
    (piece,) = cut_pieces()
    (chunk,) = scan_pieces(MATRIX.ravel(), 0, [piece])
    for parts in ([], chunk.kept[:-1], [*chunk.kept[:-1], chunk.kept[-1][:-1]]):
        assert not fits_piece(msgspec.structs.replace(chunk, kept=parts), piece)
    assert not fits_piece(msgspec.structs.replace(chunk, row_squares=bytes(4)), piece)  # nothing of it is sampled


def test_spans_are_merged_and_clipped() -> None:
    assert merge_spans([(8, 12), (-4, 2), (10, 20), (30, 99), (5, 5)], 40) == ((0, 2), (8, 20), (30, 40))
