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
    assert finding.hint == "rename language_model.vision_tower.vision_model.… to vision_tower.vision_model.…"


def test_its_values_are_compared(tmp_path: Path) -> None:
    report = ckptcheck.diff(
        CHECKPOINTS / "tiny-llava", move(tmp_path / "b", "vision_tower.", "language_model.vision_tower.", 2.0)
    )
    assert {finding.code for finding in report.findings} == {"CMP001", "CMP005"}
