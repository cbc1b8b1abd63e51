"""Tensors are compared byte by byte."""

from __future__ import annotations

from pathlib import Path

import pytest

from ckptcheck.checkpoint.open import open_checkpoint
from ckptcheck.linter.rule import Skip
from ckptcheck.values.detectors.byte_compare import are_equal_tensors


def test_bytes_that_a_file_no_longer_holds_are_not_equal(folder: Path) -> None:
    ckpt = open_checkpoint(str(folder))
    first, second = "model.layers.0.mlp.gate_proj.weight", "model.layers.0.mlp.up_proj.weight"
    assert are_equal_tensors(ckpt, first, first)
    assert not are_equal_tensors(ckpt, first, second)
    with (folder / ckpt.tensor_to_file[first]).open("r+b") as file:
        file.truncate(ckpt.shards[ckpt.tensor_to_file[first]].data_start)
    with pytest.raises(Skip, match="shrank while it was being read"):
        are_equal_tensors(ckpt, first, first)
