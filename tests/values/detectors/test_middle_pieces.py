"""Projections of a real model to which a number was added, whose numbers were cut off, or of which only the signs are left."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.checkpoint.open import open_checkpoint
from ckptcheck.values.detectors.middle_pieces import MiddlePiece, find_clipped_matrices, find_shifted_matrices
from ckptcheck.values.value_pass import ValuePass
from tests.conftest import needs
from tests.factories.value_cases import copy_with_values, find_keys, read_raw_values

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("smollm2")]
NAME = "model.layers.12.mlp.up_proj.weight"
DOWN = "model.layers.5.mlp.down_proj.weight"


def read_matrix(folder: Path, name: str) -> NDArray[np.float32]:
    raw = np.frombuffer(read_raw_values(open_checkpoint(str(folder)), name), np.uint16)
    return (raw.astype(np.uint32) << 16).view(np.float32)


def open_with(source: Path, target: Path, changed: dict[str, NDArray[np.float32]]) -> Checkpoint:
    """Write matrices as BF16, rounded toward zero."""
    values = {
        name: (value.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16).tobytes()
        for name, value in changed.items()
    }
    return open_checkpoint(str(copy_with_values(source, target, values)), value_reader=ValuePass())


def find_shifted_after(source: Path, target: Path, changed: dict[str, NDArray[np.float32]]) -> list[MiddlePiece]:
    return find_shifted_matrices(open_with(source, target, changed))


def find_clipped_after(source: Path, target: Path, value: NDArray[np.float32]) -> list[MiddlePiece]:
    return find_clipped_matrices(open_with(source, target, {DOWN: value}))


def test_no_matrix_of_real_models_is_doubted(smollm2: Path, minilm: Path) -> None:
    for folder in (smollm2, minilm):
        ckpt = open_checkpoint(str(folder), value_reader=ValuePass())
        assert find_shifted_matrices(ckpt) == []
        assert find_clipped_matrices(ckpt) == []


@pytest.mark.parametrize("deviations", [0.3, -0.4, 1.5])
def test_a_number_was_added_to_one_matrix(smollm2: Path, tmp_path: Path, deviations: float) -> None:
    value = read_matrix(smollm2, NAME)
    (found,) = find_shifted_after(smollm2, tmp_path / "copy", {NAME: value + np.float32(deviations) * value.std()})
    assert found.name == NAME
    assert found.shift == pytest.approx(deviations, abs=0.06)


def test_zero_points_that_are_one_step_off(smollm2: Path, tmp_path: Path) -> None:
    """Each group of 64 numbers is rounded to 4 bits and unpacked with its zero point off by one, in all matrices."""
    names = [name for name in open_checkpoint(str(smollm2)).tensors if name.endswith("proj.weight")]
    sound, shifted = {}, {}
    for name in names:
        groups = read_matrix(smollm2, name).reshape(-1, 64)
        least, most = groups.min(axis=1, keepdims=True), groups.max(axis=1, keepdims=True)
        scales = (most - least) / 15
        zeros = np.round(-least / scales)
        codes = np.round(groups / scales + zeros).clip(0, 15)
        sound[name] = ((codes - zeros) * scales).ravel()
        shifted[name] = ((codes - zeros - 1) * scales).ravel()
    assert find_shifted_after(smollm2, tmp_path / "sound", sound) == []
    found = find_shifted_after(smollm2, tmp_path / "shifted", shifted)
    assert len(found) >= 0.98 * len(names)
    assert all(-0.6 < matrix.shift <= -0.06 for matrix in found)


def test_a_small_number_was_added_to_all_matrices(smollm2: Path, tmp_path: Path) -> None:
    names = [name for name in open_checkpoint(str(smollm2)).tensors if name.endswith("proj.weight")]
    values = {name: read_matrix(smollm2, name) for name in names}
    shifted = {name: value + np.float32(0.1) * value.std() for name, value in values.items()}
    assert len(find_shifted_after(smollm2, tmp_path / "shifted", shifted)) >= 0.8 * len(names)
    half = {name: shifted[name] for name in names[::2]}
    assert find_shifted_after(smollm2, tmp_path / "half", half) == []


def test_one_kind_of_matrices_may_have_another_mean(smollm2: Path, tmp_path: Path) -> None:
    """Training may do that; what no training does is to shift all kinds."""
    names = [name for name in open_checkpoint(str(smollm2)).tensors if name.endswith("down_proj.weight")]
    changed = {name: (value := read_matrix(smollm2, name)) + value.std() for name in names}
    assert find_shifted_after(smollm2, tmp_path / "copy", changed) == []


@pytest.mark.parametrize("deviations", [1.0, 1.5, 2.2])
def test_numbers_that_were_cut_off(smollm2: Path, tmp_path: Path, deviations: float) -> None:
    value = read_matrix(smollm2, DOWN)
    bound = deviations * value.std()
    (found,) = find_clipped_after(smollm2, tmp_path / "clipped", value.clip(-bound, bound))
    assert found.name == DOWN
    assert found.cut_off == pytest.approx(float((np.abs(value) >= bound).mean()), rel=0.5)


def test_a_cast_that_saturates(smollm2: Path, tmp_path: Path) -> None:
    needs("torch")
    import torch

    value = torch.from_numpy(read_matrix(smollm2, DOWN))
    scale = 1.5 * value.std() / 448
    cast = (value / scale).clamp(-448, 448).to(torch.float8_e4m3fn).float() * scale
    (found,) = find_clipped_after(smollm2, tmp_path / "cast", cast.numpy())
    assert found.name == DOWN


@pytest.mark.parametrize("levels", [1, 7, 15])
def test_a_few_levels_are_sound(smollm2: Path, tmp_path: Path, levels: int) -> None:
    value = read_matrix(smollm2, DOWN)
    step = 1.5 * float(value.std()) / levels
    assert find_clipped_after(smollm2, tmp_path / "levels", (value / step).round().clip(-levels, levels) * step) == []


@pytest.mark.parametrize(("layers", "reported"), [([12], True), (range(30), False)])
def test_a_matrix_of_signs_among_others_is_named(
    smollm2: Path, tmp_path: Path, layers: list[int], reported: bool
) -> None:
    """A model that is binary in all layers is meant to be."""
    ckpt, values = open_checkpoint(str(smollm2)), {}
    for layer in layers:
        name = f"model.layers.{layer}.mlp.up_proj.weight"
        signs = np.frombuffer(read_raw_values(ckpt, name), "<u2") & 0x8000
        values[name] = (signs | 0x3DCD).astype("<u2").tobytes()
    folder = copy_with_values(smollm2, tmp_path / "copy", values)
    assert find_keys(folder) == ([("VAL007", "model.layers.12.mlp.up_proj.weight")] if reported else [])
