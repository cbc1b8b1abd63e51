"""Layers of a real model that are nearly copies of others."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from ckptcheck import scan
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.checkpoint.open import open_checkpoint
from ckptcheck.values.detectors.near_copied_layers import find_near_copies
from ckptcheck.values.value_pass import ValuePass
from tests.values.detectors.test_channel_order import name_of, open_changed, read_layer

PARTS = ("q", "k", "v", "o", "gate", "up", "down")


def mix(smollm2: Path, folder: Path, layer: int, shares: dict[int, float], noise: float = 0.0) -> Checkpoint:
    """Put a sum of layers, with noise of a size relative to it, in place of a layer."""
    sound, random = open_checkpoint(str(smollm2)), np.random.default_rng(0)
    changed = {}
    for part in PARTS:
        parts = [share * read_numbers(sound, other, part) for other, share in shares.items()]
        changed[name_of(layer, part)] = to_bits(add_noise(np.sum(parts, axis=0), noise, random))
    return open_changed(smollm2, folder, changed)


def read_numbers(ckpt: Checkpoint, layer: int, part: str) -> NDArray[np.float32]:
    """Return a matrix of a layer in bf16 as float32."""
    return (read_layer(ckpt, layer, part)[0].astype(np.uint32) << 16).view(np.float32)


def to_bits(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Return the bits of numbers in bf16."""
    return ((values.astype(np.float32).view(np.uint32) + 0x8000) >> 16).astype(np.uint16)


def add_noise(values: NDArray[np.float32], noise: float, random: np.random.Generator) -> NDArray[np.float32]:
    noisy: NDArray[np.float32] = values + noise * values.std() * random.standard_normal(values.shape, np.float32)
    return noisy


def test_no_layer_of_a_real_model_is_doubted(smollm2: Path) -> None:
    assert find_near_copies(open_checkpoint(str(smollm2), value_reader=ValuePass())) == {}


@pytest.mark.slow
def test_no_layer_of_a_trained_encoder_is_doubted(minilm: Path) -> None:
    assert find_near_copies(open_checkpoint(str(minilm), value_reader=ValuePass())) == {}


def test_a_copy_with_noise(smollm2: Path, tmp_path: Path) -> None:
    found = find_near_copies(mix(smollm2, tmp_path / "changed", 12, {5: 1.0}, noise=0.5))
    ((copy,),) = found.values()
    assert (copy.layer, copy.others) == (12, (5,))
    assert 0.8 < copy.cosines[0] < 0.95
    assert copy.usual < 0.1
    (finding,) = scan(tmp_path / "changed", select=["VAL032"]).findings
    assert finding.message == (
        "model.layers.12 is nearly the same as layer 5: mlp.down_proj.weight and self_attn.o_proj.weight have a cosine of 0.89 "
        "with those there, and of at most 0.02 in all other layers"
    )


def test_the_mean_of_two_neighbours(smollm2: Path, tmp_path: Path) -> None:
    found = find_near_copies(mix(smollm2, tmp_path / "changed", 12, {11: 0.5, 13: 0.5}))
    ((copy,),) = found.values()
    assert (copy.layer, copy.others) == (12, (11, 13))
    assert all(0.5 < cosine < 0.9 for cosine in copy.cosines)
    (finding,) = scan(tmp_path / "changed", select=["VAL032"]).findings
    assert finding.message == (
        "model.layers.12 lies between layers 11 and 13, as their mean does: mlp.down_proj.weight and self_attn.o_proj.weight have "
        "a cosine of 0.71 and 0.68 with those there, and of at most 0.02 in all other layers"
    )


def test_a_mean_with_the_layer_itself(smollm2: Path, tmp_path: Path) -> None:
    found = find_near_copies(mix(smollm2, tmp_path / "changed", 12, {12: 0.5, 20: 0.5}))
    ((copy,),) = found.values()
    assert (copy.layer, copy.others) == (20, (12,))


def test_a_layer_that_is_the_same_byte_for_byte_is_left_to_another_rule(smollm2: Path, tmp_path: Path) -> None:
    assert find_near_copies(mix(smollm2, tmp_path / "changed", 12, {5: 1.0})) == {}
    found = scan(tmp_path / "changed", select=["VAL008", "VAL032"]).findings
    assert [finding.code for finding in found] == ["VAL008"]


def test_a_small_part_of_another_layer_is_none(smollm2: Path, tmp_path: Path) -> None:
    assert find_near_copies(mix(smollm2, tmp_path / "changed", 12, {12: 0.8, 20: 0.2})) == {}


def test_a_model_that_was_made_deeper(smollm2: Path, tmp_path: Path) -> None:
    """Where a quarter of the layers have a neighbour like them, that is how the model was made."""
    sound, random = open_checkpoint(str(smollm2)), np.random.default_rng(0)
    changed = {}
    for layer in range(10, 16):
        for part in PARTS:
            changed[name_of(layer + 6, part)] = to_bits(add_noise(read_numbers(sound, layer, part), 0.1, random))
    assert find_near_copies(open_changed(smollm2, tmp_path / "changed", changed)) == {}
