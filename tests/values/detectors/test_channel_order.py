"""Matrices of a real model whose channels are in another order, and fused matrices that were split in another order."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.checkpoint.open import open_checkpoint
from ckptcheck.values.detectors.residual_stream import find_scattered_matrices
from ckptcheck.values.detectors.split_order import find_wrong_splits
from ckptcheck.values.value_pass import ValuePass
from tests.factories.value_cases import copy_with_values, read_raw_values

Matrices = dict[str, NDArray[np.uint16]]
HIDDEN, UNITS, HEAD = 576, 1536, 64
ATTENTION, MLP = "self_attn.{}_proj", "mlp.{}_proj"


def name_of(layer: int, part: str) -> str:
    module = part if "norm" in part else (MLP if part in ("gate", "up", "down") else ATTENTION).format(part)
    return f"model.layers.{layer}.{module}.weight"


def read_layer(ckpt: Checkpoint, layer: int, *parts: str) -> list[NDArray[np.uint16]]:
    """Return the bits of some matrices of a layer."""
    names = [name_of(layer, part) for part in parts]
    return [np.frombuffer(read_raw_values(ckpt, name), np.uint16).reshape(ckpt.tensors[name].shape) for name in names]


def open_changed(source: Path, target: Path, changed: dict[str, Any]) -> Checkpoint:
    values = {name: np.ascontiguousarray(value).tobytes() for name, value in changed.items()}
    return open_checkpoint(str(copy_with_values(source, target, values)), value_reader=ValuePass())


def test_no_matrix_of_a_real_model_is_doubted(smollm2: Path) -> None:
    ckpt = open_checkpoint(str(smollm2), value_reader=ValuePass())
    assert find_scattered_matrices(ckpt) == []
    assert find_wrong_splits(ckpt) == []


@pytest.mark.slow
def test_no_matrix_of_a_trained_encoder_is_doubted(minilm: Path) -> None:
    ckpt = open_checkpoint(str(minilm), value_reader=ValuePass())
    assert find_scattered_matrices(ckpt) == []
    assert find_wrong_splits(ckpt) == []


@pytest.mark.parametrize(
    ("part", "change"),
    [
        ("o", lambda value: np.roll(value, HEAD, 0)),
        ("v", lambda value: np.roll(value, HIDDEN // 2, 1)),
        ("down", lambda value: np.roll(value, 1, 0)),
        ("input_layernorm", lambda value: value[::-1]),
        ("post_attention_layernorm", lambda value: np.roll(value, 1)),
        ("q", lambda value: value[:, np.random.default_rng(1).permutation(HIDDEN)]),
    ],
)
def test_a_matrix_in_another_order(
    smollm2: Path, tmp_path: Path, part: str, change: Callable[[NDArray[np.uint16]], NDArray[np.uint16]]
) -> None:
    sound = open_checkpoint(str(smollm2))
    ckpt = open_changed(smollm2, tmp_path / "changed", {name_of(5, part): change(*read_layer(sound, 5, part))})
    (matrix,) = find_scattered_matrices(ckpt)
    assert matrix.name == name_of(5, part)
    assert matrix.r2 < 0.1 < 0.5 < matrix.usual


def test_shuffled_channels_of_the_stream(smollm2: Path, tmp_path: Path) -> None:
    order = np.random.default_rng(2).permutation(HIDDEN)
    parts = ("q", "k", "v")
    values = read_layer(open_checkpoint(str(smollm2)), 5, *parts)
    changed = {name_of(5, part): value[:, order] for part, value in zip(parts, values, strict=True)}
    scattered = find_scattered_matrices(open_changed(smollm2, tmp_path / "shuffled", changed))
    assert {matrix.name for matrix in scattered} == changed.keys()


def test_data_of_a_transposed_matrix(smollm2: Path, tmp_path: Path) -> None:
    (value,) = read_layer(open_checkpoint(str(smollm2)), 5, "down")
    ckpt = open_changed(smollm2, tmp_path / "reshaped", {name_of(5, "down"): value.T.reshape(value.shape)})
    assert [matrix.name for matrix in find_scattered_matrices(ckpt)] == [name_of(5, "down")]


@pytest.mark.parametrize(
    ("how", "order"),
    [
        ("rows", "row by row, a gate before its up"),
        ("rows, up first", "row by row, an up before its gate"),
        ("2", "in 2 pieces, one for each rank, the gate of each before its up"),
        ("8", "in 8 pieces, one for each rank, the gate of each before its up"),
        ("4, up first", "in 4 pieces, one for each rank, the up of each before its gate"),
        ("groups", "in 3 pieces, one for each group of heads"),
    ],
)
def test_fused_matrices_that_were_split_in_another_order(smollm2: Path, tmp_path: Path, how: str, order: str) -> None:
    sound = open_checkpoint(str(smollm2))
    parts = ("q", "k", "v") if how == "groups" else ("gate", "up")
    changed = {}
    for layer in range(30):
        values = read_layer(sound, layer, *parts)
        lengths = [len(value) for value in values]
        pieces = UNITS if how.startswith("rows") else 3 if how == "groups" else int(how[0])
        turns = [np.split(value, pieces) for value in values]
        if "up first" in how:
            turns.reverse()
        joined = np.concatenate([part for turn in zip(*turns, strict=True) for part in turn])
        for part, value in zip(parts, np.split(joined, np.cumsum(lengths)[:-1]), strict=True):
            changed[name_of(layer, part)] = value
    (split,) = find_wrong_splits(open_changed(smollm2, tmp_path / "split", changed))
    assert split.order == order
    assert split.tensors == tuple(name_of(1, part) for part in parts)
