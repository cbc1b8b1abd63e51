"""The picture of a comparison: what became of every tensor stands in its place, the same in every run."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import ckptcheck
from ckptcheck.linter.pictures import HeatCell, HeatMap
from ckptcheck.reporters import render
from tests.factories.checkpoint_cases import CHECKPOINTS

TINY = CHECKPOINTS / "tiny-llama"


@pytest.fixture
def other(tmp_path: Path) -> Path:
    return Path(shutil.copytree(TINY, tmp_path / "other"))


def change(folder: Path, tensors: dict[str, np.ndarray | None]) -> None:
    file = folder / "model.safetensors"
    changed = load_file(file) | tensors
    save_file({name: tensor for name, tensor in changed.items() if tensor is not None}, file, {"format": "pt"})


def draw(first: Path, second: Path, **options: object) -> dict[str, HeatCell]:
    (picture,) = ckptcheck.diff(first, second, pictures=True, **options).pictures  # type: ignore[arg-type]
    assert isinstance(picture, HeatMap)
    assert list(picture.rows) == list(dict.fromkeys(picture.rows))
    return {cell.name: cell for cell in picture.cells.values()}


def test_equal_sides_are_equal_everywhere_and_the_report_says_how_many(other: Path) -> None:
    assert {cell.state for cell in draw(TINY, other).values()} == {"equal"}
    assert ckptcheck.diff(TINY, other).headline == "30 tensors are equal bit for bit"
    assert ckptcheck.diff(TINY, other, atol=0.1).headline == "30 tensors are equal within the tolerance"
    assert ckptcheck.diff(TINY, other).pictures == ()


def test_each_difference_has_its_state(other: Path) -> None:
    tensors = load_file(TINY / "model.safetensors")
    layer = "model.layers.{}.mlp.up_proj.weight"
    change(
        other,
        {
            layer.format(0): tensors[layer.format(1)],
            "model.layers.0.mlp.down_proj.weight": tensors["model.layers.0.mlp.down_proj.weight"] + 0.5,
            "model.norm.weight": None,
            "model.more.weight": np.ones(3, np.float32),
            "model.layers.1.self_attn.o_proj.weight": np.ones((3, 5), np.float32),
        },
    )
    cells = draw(TINY, other)
    report = ckptcheck.diff(TINY, other)
    assert report.headline == ""
    assert {name: cell.state for name, cell in cells.items() if cell.state != "equal"} == {
        layer.format(0): "swapped",
        "model.layers.0.mlp.down_proj.weight": "different",
        "model.norm.weight": "missing",
        "model.more.weight": "extra",
        "model.layers.1.self_attn.o_proj.weight": "other shape",
    }
    assert "numbers differ, at most 0.5 apart" in cells["model.layers.0.mlp.down_proj.weight"].note
    assert {name for finding in report.findings for name in (finding.key, *finding.names)} >= {
        name for name, cell in cells.items() if cell.state != "equal"
    }


def test_a_cast_says_from_what_to_what(other: Path) -> None:
    names = ("model.norm.weight", "lm_head.weight")
    tensors = load_file(TINY / "model.safetensors")
    exact = {name: tensors[name].astype(np.float16).astype(np.float32) for name in names}
    change(other, exact)
    halves = Path(shutil.copytree(other, other.with_name("halves")))
    change(halves, {name: tensor.astype(np.float16) for name, tensor in exact.items()})
    cells = draw(other, halves)
    assert {name: (cell.state, cell.note) for name, cell in cells.items() if cell.state != "equal"} == dict.fromkeys(
        names, ("cast", "F32 ↔ F16")
    )


def test_what_was_not_updated_is_stale(other: Path, tmp_path: Path) -> None:
    tensors = load_file(TINY / "model.safetensors")
    before = Path(shutil.copytree(TINY, tmp_path / "before"))
    new = Path(shutil.copytree(TINY, tmp_path / "new"))
    change(new, {name: tensor * np.float32(1.25) for name, tensor in tensors.items() if tensor.ndim == 2})
    change(other, {name: tensor * np.float32(1.25) for name, tensor in tensors.items() if tensor.ndim == 2})
    kept = "model.layers.1.mlp.gate_proj.weight"
    change(other, {kept: tensors[kept]})
    cells = draw(new, other, previous=before)
    assert {name: cell.state for name, cell in cells.items() if cell.state != "equal"} == {kept: "stale"}


def test_the_page_is_the_same_in_every_run(other: Path) -> None:
    change(other, {"model.norm.weight": None})
    pages = [render("html", [ckptcheck.diff(TINY, other, pictures=True)], ()) for _ in range(2)]
    assert pages[0] == pages[1]
