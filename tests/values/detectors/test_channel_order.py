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
from ckptcheck.values.detectors.channel_order import find_mismatched_blocks, find_scattered_matrices
from ckptcheck.values.detectors.exchanged_norms import find_exchanged_norms
from ckptcheck.values.detectors.foreign_values import find_exchanged_values
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
    assert find_mismatched_blocks(ckpt) == []
    assert find_scattered_matrices(ckpt) == []
    assert find_wrong_splits(ckpt) == []
    assert find_exchanged_values(ckpt) == []
    assert find_exchanged_norms(ckpt) == []


@pytest.mark.slow
def test_no_matrix_of_a_trained_encoder_is_doubted(minilm: Path) -> None:
    ckpt = open_checkpoint(str(minilm), value_reader=ValuePass())
    assert find_mismatched_blocks(ckpt) == []
    assert find_scattered_matrices(ckpt) == []
    assert find_wrong_splits(ckpt) == []
    assert find_exchanged_values(ckpt) == []
    assert find_exchanged_norms(ckpt) == []


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
    assert find_mismatched_blocks(ckpt) == []


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
    (block,) = find_mismatched_blocks(ckpt)
    assert (block.down, block.order, block.belongs) == (name_of(5, "down"), (), None)


def test_norms_of_a_layer_that_hold_each_others_weights(smollm2: Path, tmp_path: Path) -> None:
    """The layers beside those two have an exchanged norm beside them, and are not named."""
    sound = open_checkpoint(str(smollm2))
    changed: dict[str, Any] = {}
    for layer in (8, 24):
        before, after = read_layer(sound, layer, "input_layernorm", "post_attention_layernorm")
        changed |= {name_of(layer, "input_layernorm"): after, name_of(layer, "post_attention_layernorm"): before}
    found = find_exchanged_norms(open_changed(smollm2, tmp_path / "changed", changed))
    assert [norms.names for norms in found] == [
        (name_of(layer, "input_layernorm"), name_of(layer, "post_attention_layernorm")) for layer in (8, 24)
    ]
    assert all(norms.difference < -0.5 < 0.2 < norms.usual for norms in found)


@pytest.mark.parametrize("part", ["v", "o"])
def test_values_or_outputs_of_two_layers(smollm2: Path, tmp_path: Path, part: str) -> None:
    sound = open_checkpoint(str(smollm2))
    (first,), (last,) = (read_layer(sound, layer, part) for layer in (2, 7))
    ckpt = open_changed(smollm2, tmp_path / "changed", {name_of(2, part): last, name_of(7, part): first})
    (pair,) = find_exchanged_values(ckpt)
    assert pair.values == (name_of(2, "v"), name_of(7, "v"))
    assert pair.outputs == (name_of(2, "o"), name_of(7, "o"))
    assert pair.own < 0.1 < 0.6 < pair.crossed


@pytest.mark.parametrize(("ranks", "order"), [(2, (1, 0)), (4, (2, 0, 3, 1)), (8, (0, 2, 4, 6, 1, 3, 5, 7))])
def test_ranks_that_changed_places(smollm2: Path, tmp_path: Path, ranks: int, order: tuple[int, ...]) -> None:
    (value,) = read_layer(open_checkpoint(str(smollm2)), 12, "up")
    parts = np.split(value, ranks)
    ckpt = open_changed(smollm2, tmp_path / "ranks", {name_of(12, "up"): np.concatenate([parts[at] for at in order])})
    (block,) = find_mismatched_blocks(ckpt)
    assert block.up == name_of(12, "up")
    assert tuple(order[at] for at in block.order) == tuple(range(ranks))
    assert find_scattered_matrices(ckpt) == []


@pytest.mark.parametrize("part", ["up", "down"])
def test_matrices_of_two_layers(smollm2: Path, tmp_path: Path, part: str) -> None:
    sound = open_checkpoint(str(smollm2))
    changed = {name_of(to, part): read_layer(sound, of, part)[0] for to, of in ((8, 15), (15, 8))}
    blocks = find_mismatched_blocks(open_changed(smollm2, tmp_path / "exchanged", changed))
    assert [(block.up, block.belongs) for block in blocks] == [
        (name_of(8, "up"), (15, 15)),
        (name_of(15, "up"), (8, 8)),
    ]


def test_exchanged_gates_are_left_to_their_own_rule(smollm2: Path, tmp_path: Path) -> None:
    gate, up = read_layer(open_checkpoint(str(smollm2)), 12, "gate", "up")
    ckpt = open_changed(smollm2, tmp_path / "gates", {name_of(12, "gate"): up, name_of(12, "up"): gate})
    assert find_mismatched_blocks(ckpt) == []


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
