"""Tensors with more dimensions than an array can have: safetensors and PyTorch read them, and no comparison can."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import ckptcheck
from ckptcheck.errors import EvidenceError


def write(folder: Path, dimensions: int) -> Path:
    folder.mkdir()
    header = {"a.weight": {"dtype": "F32", "shape": [1] * dimensions, "data_offsets": [0, 4]}}
    head = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(len(head).to_bytes(8, "little") + head + b"1234")
    return folder


def test_a_tensor_of_many_dimensions_is_not_compared(tmp_path: Path) -> None:
    flat, deep = write(tmp_path / "flat", 32), write(tmp_path / "deep", 20_000)
    assert ckptcheck.diff(flat, flat).verdict == "clean"
    report = ckptcheck.diff(deep, deep)
    assert report.verdict == "incomplete"
    assert "a.weight: it has 20,000 dimensions, and NumPy's arrays have at most 32" in str(report)
    ckptcheck.manifest(deep, tmp_path / "m.json")
    assert ckptcheck.verify(deep, tmp_path / "m.json").verdict == "clean"
    with pytest.raises(EvidenceError, match=r"has no identity: a\.weight cannot be read"):
        ckptcheck.identity(deep)
