"""Tensors are compared byte by byte."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from ckptcheck.checkpoint.open import open_checkpoint
from ckptcheck.linter.rule import Skip
from ckptcheck.values.detectors.byte_compare import are_equal_tensors, map_pieces


def test_bytes_that_a_file_no_longer_holds_are_not_equal(folder: Path) -> None:
    ckpt = open_checkpoint(str(folder))
    first, second = "model.layers.0.mlp.gate_proj.weight", "model.layers.0.mlp.up_proj.weight"
    assert are_equal_tensors(ckpt, first, first)
    assert not are_equal_tensors(ckpt, first, second)
    with (folder / ckpt.tensor_to_file[first]).open("r+b") as file:
        file.truncate(ckpt.shards[ckpt.tensor_to_file[first]].data_start)
    with pytest.raises(Skip, match="shrank while it was being read"):
        are_equal_tensors(ckpt, first, first)


@pytest.mark.parametrize("is_remote", [False, True])
def test_pieces_in_a_store_are_read_several_at_a_time(folder: Path, is_remote: bool) -> None:
    """Each waits for the network there; on disk the next one is read when it is asked for."""
    ckpt = open_checkpoint(str(folder))
    if is_remote:
        ckpt.source.local = None  # type: ignore[misc]
    meeting = threading.Barrier(2 if is_remote else 1, timeout=60)
    begun: list[int] = []

    def read(unit: int) -> int:
        begun.append(unit)
        meeting.wait()
        return unit * unit

    answers = map_pieces(ckpt, read, range(40))
    assert next(answers) == 0
    assert is_remote or begun == [0]
    assert list(answers) == [unit * unit for unit in range(1, 40)]
