"""Pieces of a file that stand in it twice."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from ckptcheck import scan
from ckptcheck.checkpoint.open import open_checkpoint
from ckptcheck.values.detectors.repeated_pieces import find_repeated_pieces
from ckptcheck.values.file_marks import MARK_BYTES, MARK_STEP, count_marks, take_marks
from ckptcheck.values.value_pass import ValuePass

COLUMNS = 1000
"""Of F32: rows of 4,000 bytes, whose ends are ends of blocks only once in 256,000 bytes."""
RANDOM = np.random.default_rng(0)


def write_file(folder: Path, tensors: dict[str, NDArray[np.float32]]) -> Path:
    folder.mkdir()
    header, reached = {}, 0
    for name, value in tensors.items():
        header[name] = {"dtype": "F32", "shape": value.shape, "data_offsets": [reached, reached + value.nbytes]}
        reached += value.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path = folder / "model.safetensors"
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(value.tobytes() for value in tensors.values()))
    return path


def copy_piece(path: Path, source: int, target: int, nbytes: int) -> None:
    raw = bytearray(path.read_bytes())
    raw[target : target + nbytes] = raw[source : source + nbytes]
    path.write_bytes(raw)


def draw(rows: int) -> NDArray[np.float32]:
    return RANDOM.standard_normal((rows, COLUMNS), dtype=np.float32)


def find(folder: Path) -> list[tuple[int, int, int]]:
    ckpt = open_checkpoint(str(folder), value_reader=ValuePass(jobs=1))
    return [(piece.original, piece.copy, piece.nbytes) for piece in find_repeated_pieces(ckpt)]


@pytest.mark.parametrize(
    ("source", "target", "nbytes"),
    [
        (1 << 20, 3 << 20, 1 << 20),
        (5 << 20, 1 << 20, 1 << 18),  # backwards
        (100_000, 100_000 + (40 << 16), 300_000),  # between the blocks
    ],
)
def test_a_piece_that_was_written_to_the_wrong_place(tmp_path: Path, source: int, target: int, nbytes: int) -> None:
    path = write_file(tmp_path / "model", {"a.weight": draw(700), "b.weight": draw(900)})
    assert find(path.parent) == []
    copy_piece(path, source, target, nbytes)
    first, second = sorted((source, target))
    ((original, copy, length),) = find(path.parent)
    # numbers beside a piece may have the same first or last bytes
    assert 0 <= first - original < 8
    assert copy - original == second - first
    assert 0 <= length - nbytes < 16
    (finding,) = scan(path.parent, select=["VAL035"]).findings
    assert finding.severity == "error"
    assert finding.message == (
        f"{length:,} bytes from byte {original:,} of the file, in a.weight, stand once more from byte {copy:,} on, in "
        f"{'a' if copy < 2_800_000 else 'b'}.weight, and are not whole rows: one of the two was overwritten"
    )


def test_whole_rows_may_stand_twice(tmp_path: Path) -> None:
    """Heads, experts and tied matrices are copies on purpose. Here the distance is a multiple of the blocks too."""
    shared = draw(512)
    tensors = {"a.weight": np.concatenate([shared, draw(512), shared]), "b.weight": draw(10), "c.weight": draw(502)}
    tensors["d.weight"] = shared
    assert find(write_file(tmp_path / "model", tensors).parent) == []
    shifted = np.concatenate([shared[:511], draw(1), shared[:511]])
    assert find(write_file(tmp_path / "rows", {"a.weight": shifted}).parent) == []


def test_whole_rows_whose_marks_are_broken(tmp_path: Path) -> None:
    """In the middle of both copies stand zeros, so that a mark is missing."""
    shared = draw(512)
    shared[250:290] = 0
    tensors = {"a.weight": np.concatenate([shared, draw(512)]), "b.weight": draw(512), "c.weight": draw(512)}
    tensors["d.weight"] = shared
    assert find(write_file(tmp_path / "model", tensors).parent) == []


def test_a_piece_whose_marks_are_broken_is_told_once(tmp_path: Path) -> None:
    value = draw(1400)
    value[150:170] = 0  # a mark in the middle of the piece
    path = write_file(tmp_path / "model", {"a.weight": value})
    copy_piece(path, 100_000, 100_000 + (40 << 16), 1_500_000)
    ((original, copy, length),) = find(path.parent)
    assert copy - original == 40 << 16
    assert 0 <= length - 1_500_000 < 16


def test_patterns_say_nothing(tmp_path: Path) -> None:
    mask = np.tile(np.tril(np.ones((COLUMNS, COLUMNS), np.float32)), (2, 1))
    period = np.tile(RANDOM.standard_normal(64, dtype=np.float32), COLUMNS * 1024 // 64).reshape(-1, COLUMNS)
    tensors = {"a.weight": draw(300), "mask": mask, "table": period, "zeros": np.zeros((800, COLUMNS), np.float32)}
    assert find(write_file(tmp_path / "model", tensors).parent) == []


@pytest.mark.parametrize("begin", [0, 1, 8, MARK_STEP - 8, MARK_STEP - 4, MARK_STEP, 3 * MARK_STEP + 5])
@pytest.mark.parametrize("nbytes", [0, 7, 8, MARK_STEP, MARK_STEP + 7, 5 * MARK_STEP + 3])
def test_marks(begin: int, nbytes: int) -> None:
    file = RANDOM.integers(0, 256, begin + nbytes, dtype=np.uint8)
    expected = [
        file[at : at + MARK_BYTES].tobytes()
        for at in range(0, begin + nbytes, MARK_STEP)
        if begin <= at and at + MARK_BYTES <= begin + nbytes
    ]
    assert take_marks(file[begin:], begin) == b"".join(expected)
    assert count_marks(begin, nbytes) == len(expected)
