"""Matrices of a real model, divided by their scales and rounded to the numbers of a format."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from ckptcheck.checkpoint.open import open_checkpoint
from ckptcheck.values.detectors.bare_codes import find_bare_codes
from ckptcheck.values.dtypes import decode
from ckptcheck.values.value_pass import ValuePass
from tests.factories.value_cases import copy_with_values, read_raw_values

NAMES = [f"model.layers.{layer}.mlp.down_proj.weight" for layer in range(4)]


def numbers_of(form: str) -> NDArray[np.float64]:
    """Return the numbers of a format that are not negative."""
    if form == "INT4":
        return np.arange(8, dtype=np.float64)
    numbers = decode("F8_E4M3", np.arange(128, dtype=np.uint8))
    return np.unique(numbers[np.isfinite(numbers)]).astype(np.float64)


def round_to(value: NDArray[np.float32], numbers: NDArray[np.float64], group: int, *, dequantize: bool) -> bytes:
    """Quantize groups of neighbours, and return the codes or the numbers that they stand for, as BF16."""
    groups = value.reshape(-1, group)
    scale = np.maximum(np.abs(groups).max(1, keepdims=True) / numbers[-1], 1e-12)
    codes = numbers[np.searchsorted((numbers[1:] + numbers[:-1]) / 2, np.abs(groups / scale))] * np.sign(groups)
    result = (codes * scale if dequantize else codes).astype(np.float32)
    return bytes((result.view(np.uint32) >> 16).astype(np.uint16))


@pytest.mark.parametrize(("form", "group"), [("E4M3", 128), ("INT4", 64)])
def test_codes_are_told_from_the_weights_they_stand_for(smollm2: Path, tmp_path: Path, form: str, group: int) -> None:
    original = open_checkpoint(str(smollm2))
    values = {
        name: decode("BF16", np.frombuffer(read_raw_values(original, name), np.uint16)).astype(np.float32)
        for name in NAMES
    }
    for dequantize in (False, True):
        changed = {
            name: round_to(value, numbers_of(form), group, dequantize=dequantize) for name, value in values.items()
        }
        folder = copy_with_values(smollm2, tmp_path / str(dequantize), changed)
        found = find_bare_codes(open_checkpoint(str(folder), value_reader=ValuePass()))
        assert [(codes.format.name, codes.names) for codes in found] == ([] if dequantize else [(form, NAMES)])


def test_no_matrix_of_a_real_model_is_doubted(smollm2: Path) -> None:
    assert find_bare_codes(open_checkpoint(str(smollm2), value_reader=ValuePass())) == []
