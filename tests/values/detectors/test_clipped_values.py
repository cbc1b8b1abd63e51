"""Matrices of a real model whose numbers were cut off."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from ckptcheck.checkpoint.open import open_checkpoint
from ckptcheck.values.detectors.middle_pieces import MiddlePiece, find_clipped_matrices
from ckptcheck.values.dtypes import decode
from ckptcheck.values.value_pass import ValuePass
from tests.conftest import needs
from tests.factories.value_cases import copy_with_values, read_raw_values

NAME = "model.layers.5.mlp.down_proj.weight"


def read_matrix(folder: Path) -> NDArray[np.float32]:
    return decode("BF16", np.frombuffer(read_raw_values(open_checkpoint(str(folder)), NAME), np.uint16)).astype(
        np.float32
    )


def find_after(source: Path, target: Path, value: NDArray[np.float32]) -> list[MiddlePiece]:
    """Write a matrix as BF16, rounded toward zero, and look for clipped ones."""
    bits = (value.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    folder = copy_with_values(source, target, {NAME: bits.tobytes()})
    return find_clipped_matrices(open_checkpoint(str(folder), value_reader=ValuePass()))


@pytest.mark.parametrize("deviations", [1.0, 1.5, 2.2])
def test_numbers_that_were_cut_off(smollm2: Path, tmp_path: Path, deviations: float) -> None:
    value = read_matrix(smollm2)
    bound = deviations * value.std()
    (found,) = find_after(smollm2, tmp_path / "clipped", value.clip(-bound, bound))
    assert found.name == NAME
    assert found.cut_off == pytest.approx(float((np.abs(value) >= bound).mean()), rel=0.5)


def test_a_cast_that_saturates(smollm2: Path, tmp_path: Path) -> None:
    needs("torch")
    import torch

    value = torch.from_numpy(read_matrix(smollm2))
    scale = 1.5 * value.std() / 448
    cast = (value / scale).clamp(-448, 448).to(torch.float8_e4m3fn).float() * scale
    (found,) = find_after(smollm2, tmp_path / "cast", cast.numpy())
    assert found.name == NAME


def test_no_matrix_of_a_real_model_is_doubted(smollm2: Path) -> None:
    assert find_clipped_matrices(open_checkpoint(str(smollm2), value_reader=ValuePass())) == []


@pytest.mark.parametrize("levels", [1, 7, 15])
def test_a_few_levels_are_sound(smollm2: Path, tmp_path: Path, levels: int) -> None:
    value = read_matrix(smollm2)
    step = 1.5 * float(value.std()) / levels
    assert find_after(smollm2, tmp_path / "levels", (value / step).round().clip(-levels, levels) * step) == []
