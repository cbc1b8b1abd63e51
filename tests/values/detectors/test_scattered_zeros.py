"""Matrices of a real model of which single numbers are zero."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from ckptcheck.checkpoint.open import open_checkpoint
from ckptcheck.values.detectors.scattered_zeros import ScatteredZeros, find_scattered_zeros
from ckptcheck.values.value_pass import ValuePass
from tests.factories.value_cases import copy_with_values, read_raw_values

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("smollm2")]
KIND = "model.layers.{}.mlp.up_proj.weight"
RANDOM = np.random.default_rng(0)


def find_after(
    source: Path, target: Path, layers: list[int], keep: Callable[[NDArray[np.uint16]], NDArray[np.bool_]]
) -> list[ScatteredZeros]:
    """Set the numbers of some layers' matrices to zero that are not to be kept. keep: patterns of BF16, by row."""
    ckpt, values = open_checkpoint(str(source)), {}
    for name in map(KIND.format, layers):
        raw = np.frombuffer(read_raw_values(ckpt, name), np.uint16).reshape(ckpt.tensors[name].shape)
        values[name] = np.where(keep(raw), raw, 0).astype(np.uint16).tobytes()
    return find_scattered_zeros(
        open_checkpoint(str(copy_with_values(source, target, values)), value_reader=ValuePass())
    )


def keep_at_random(raw: NDArray[np.uint16]) -> NDArray[np.bool_]:
    return RANDOM.random(raw.shape) < 0.5


def keep_every_second(raw: NDArray[np.uint16]) -> NDArray[np.bool_]:
    return np.broadcast_to(np.arange(raw.shape[1]) % 2 == 0, raw.shape)


@pytest.mark.parametrize("keep", [keep_at_random, keep_every_second])
def test_half_of_the_numbers_of_one_layer(
    smollm2: Path, tmp_path: Path, keep: Callable[[NDArray[np.uint16]], NDArray[np.bool_]]
) -> None:
    (found,) = find_after(smollm2, tmp_path / "copy", [12], keep)
    assert found.name == KIND.format(12)
    assert found.share == pytest.approx(0.5, abs=0.03)


def test_a_model_that_was_pruned_is_sound(smollm2: Path, tmp_path: Path) -> None:
    assert find_after(smollm2, tmp_path / "copy", list(range(0, 30, 2)), keep_at_random) == []


def test_pruning_by_magnitude_leaves_no_small_numbers(smollm2: Path, tmp_path: Path) -> None:
    def keep_large(raw: NDArray[np.uint16]) -> NDArray[np.bool_]:
        magnitudes = raw & 0x7FFF
        return magnitudes > np.median(magnitudes)

    assert find_after(smollm2, tmp_path / "copy", [12], keep_large) == []


def test_columns_of_a_rank_are_another_rules(smollm2: Path, tmp_path: Path) -> None:
    def keep_first_half(raw: NDArray[np.uint16]) -> NDArray[np.bool_]:
        return np.broadcast_to(np.arange(raw.shape[1]) < raw.shape[1] // 2, raw.shape)

    assert find_after(smollm2, tmp_path / "copy", [12], keep_first_half) == []


def test_no_matrix_of_real_models_is_doubted(smollm2: Path, minilm: Path) -> None:
    for folder in (smollm2, minilm):
        assert find_scattered_zeros(open_checkpoint(str(folder), value_reader=ValuePass())) == []
