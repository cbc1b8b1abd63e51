"""A look at a few places clears sound matrices, and never one that a detector would report."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from ckptcheck.values.first_looks import COLUMNS, MIDDLE, NONZERO, ROWS, choose_grid, judge_joined
from ckptcheck.values.worker import Piece, scan_pieces

SHAPES = [(16, 256), (64, 128), (24, 272), (6, 1024), (1000, 144), (2, 4096), (7, 512), (128, 130)]


def look(matrix: NDArray[np.uint8], *cuts: int) -> int:
    """Return the flags of a matrix of bytes that the pass reads in pieces which begin at these bytes."""
    raw = matrix.ravel()
    ends = (*cuts, raw.size)
    pieces = [
        Piece(begin, end - begin, "U8", 0, begin, looked=matrix.shape)
        for begin, end in zip((0, *cuts), ends, strict=True)
    ]
    looks = [chunk.looks for chunk in scan_pieces(raw, 0, pieces)]
    return looks[0][0] if len(pieces) == 1 else judge_joined(matrix.shape, b"".join(looks), 1)


def random_matrix(shape: tuple[int, int]) -> NDArray[np.uint8]:
    return np.random.default_rng(shape).integers(1, 256, shape, np.uint8)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_repeated_share_is_never_cleared(shape: tuple[int, int]) -> None:
    for axis, flag in ((0, ROWS), (1, COLUMNS)):
        for shares in (2, 4, 8, 16):
            share, rest = divmod(shape[axis], shares)
            if rest or (axis and share < 16):
                continue
            for first in range(shares - 1):
                matrix = random_matrix(shape)
                turned = matrix.T if axis else matrix
                turned[(first + 1) * share : (first + 2) * share] = turned[first * share : (first + 1) * share]
                assert not look(matrix) & flag, (axis, shares, first)
                assert look(matrix, 1, matrix.size // 3) == look(matrix)


@pytest.mark.parametrize("shape", SHAPES)
def test_zero_columns_are_never_cleared(shape: tuple[int, int]) -> None:
    eighth, rest = divmod(shape[1], 8)
    for part in range(0 if rest else 8):
        matrix = random_matrix(shape)
        matrix[:, part * eighth : (part + 1) * eighth] = 0
        assert not look(matrix) & MIDDLE


def test_zeros_are_told_from_numbers_with_a_zero_byte() -> None:
    matrix = np.full((16, 64), 0x0100, "<u2")
    piece = Piece(0, matrix.nbytes, "BF16", 0, 0, looked=(16, 128))
    (sound,) = scan_pieces(matrix.view(np.uint8).ravel(), 0, [piece])
    matrix[8, 3] = 0
    (found,) = scan_pieces(matrix.view(np.uint8).ravel(), 0, [piece])
    assert (sound.looks[0] & NONZERO, found.looks[0] & NONZERO) == (NONZERO, 0)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_sound_matrix_is_cleared_whole_or_in_pieces(shape: tuple[int, int]) -> None:
    matrix, grid = random_matrix(shape), choose_grid(shape)
    expected = (ROWS if grid.rows else 0) | (COLUMNS if grid.columns else 0) | (MIDDLE if grid.middle else 0) | NONZERO
    for cuts in ((), (1,), (100,), (shape[1] + 5, shape[1] + 9, matrix.size - 3)):
        assert look(matrix, *cuts) == expected


def test_a_matrix_with_missing_pieces_is_not_cleared() -> None:
    assert judge_joined((16, 256), b"too few bytes", 1) == 0
    assert choose_grid((3, 7)).spans == ()
