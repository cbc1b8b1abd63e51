"""A part under another prefix is one finding, and its values are compared all the same."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file

import ckptcheck
from tests.factories.checkpoint_cases import CHECKPOINTS


def move(folder: Path, old: str, new: str, factor: float = 1.0) -> Path:
    shutil.copytree(CHECKPOINTS / "tiny-llava", folder)
    tensors = load_file(folder / "model.safetensors")
    moved = {
        new + name.removeprefix(old) if name.startswith(old) else name: np.asarray(
            value * (factor if name.startswith(old) else 1)
        )
        for name, value in tensors.items()
    }
    save_file(moved, folder / "model.safetensors", {"format": "pt"})
    return folder


def test_a_part_under_another_prefix(tmp_path: Path) -> None:
    report = ckptcheck.diff(
        CHECKPOINTS / "tiny-llava", move(tmp_path / "b", "vision_tower.", "language_model.vision_tower.")
    )
    assert [finding.code for finding in report.findings] == ["CMP001"]
    (finding,) = report.findings
    assert "of vision_tower.vision_model are under language_model.vision_tower.vision_model" in finding.message
    assert str(finding.hint).startswith(
        "rename language_model.vision_tower.vision_model.… to vision_tower.vision_model.…, unless "
    )


def test_its_values_are_compared(tmp_path: Path) -> None:
    report = ckptcheck.diff(
        CHECKPOINTS / "tiny-llava", move(tmp_path / "b", "vision_tower.", "language_model.vision_tower.", 2.0)
    )
    assert {finding.code for finding in report.findings} == {"CMP001", "CMP005"}


def test_a_module_of_every_layer_under_another_name(tmp_path: Path) -> None:
    """Each end of a name exists once in each layer: the number tells which one it is; `mlp.A_log` follows the rest."""
    folders = []
    for name, module in (("a", "mlp"), ("b", "feed_forward")):
        folders.append(tmp_path / name)
        shutil.copytree(CHECKPOINTS / "tiny-llama", folders[-1])
        tensors = load_file(folders[-1] / "model.safetensors")
        tensors |= {f"model.layers.{layer}.mlp.A_log": np.full((4,), layer + 1, np.float32) for layer in range(3)}
        save_file(
            {key.replace(".mlp.", f".{module}."): value for key, value in tensors.items()},
            folders[-1] / "model.safetensors",
        )
    (finding,) = ckptcheck.diff(*folders).findings
    assert finding.message == (
        "12 tensors of model.layers.{}.mlp are under model.layers.{}.feed_forward in the second checkpoint: "
        "loaders look for the first names"
    )


def test_two_parts_that_may_be_the_same_one(tmp_path: Path) -> None:
    """A copy that was left behind ends like the part itself; the other side's tensors are paired once."""
    first = move(tmp_path / "a", "vision_tower.", "vision_tower.")
    tensors = load_file(first / "model.safetensors")
    copies = {f"old.{name}": value for name, value in tensors.items() if name.startswith("vision_tower.")}
    save_file(tensors | copies, first / "model.safetensors", {"format": "pt"})
    report = ckptcheck.diff(first, move(tmp_path / "b", "vision_tower.", "language_model.vision_tower."))
    assert report.error is None
    assert {finding.code for finding in report.findings} == {"CMP001"}
