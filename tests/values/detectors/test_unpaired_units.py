"""Matrices of a real model whose units do not belong together."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ckptcheck.checkpoint.open import open_checkpoint
from ckptcheck.values.detectors.unpaired_units import find_unpaired_matrices
from ckptcheck.values.value_pass import ValuePass
from tests.values.detectors.test_channel_order import HEAD, UNITS, name_of, open_changed, read_layer


def test_no_pair_of_a_real_model_is_doubted(smollm2: Path) -> None:
    assert find_unpaired_matrices(open_checkpoint(str(smollm2), value_reader=ValuePass())) == []


@pytest.mark.slow
def test_no_pair_of_a_trained_encoder_is_doubted(minilm: Path) -> None:
    assert find_unpaired_matrices(open_checkpoint(str(minilm), value_reader=ValuePass())) == []


@pytest.mark.parametrize(
    ("part", "shift", "names"),
    [
        ("gate", UNITS // 2, ("gate", "down")),
        ("k", -HEAD, ("q", "k")),
        ("q", 1, ("q", "k")),
        ("v", HEAD, ("v", "o")),
    ],
)
def test_a_matrix_in_another_order(
    smollm2: Path, tmp_path: Path, part: str, shift: int, names: tuple[str, str]
) -> None:
    (value,) = read_layer(open_checkpoint(str(smollm2)), 12, part)
    ckpt = open_changed(smollm2, tmp_path / "changed", {name_of(12, part): np.roll(value, shift, 0)})
    (unpaired,) = find_unpaired_matrices(ckpt)
    assert unpaired.names == tuple(name_of(12, name) for name in names)
    assert unpaired.measure < 1.12 < 2 < unpaired.usual
    assert (unpaired.belongs, unpaired.parts) == (None, ())


def test_queries_of_another_layer(smollm2: Path, tmp_path: Path) -> None:
    (value,) = read_layer(open_checkpoint(str(smollm2)), 20, "q")
    ckpt = open_changed(smollm2, tmp_path / "changed", {name_of(12, "q"): value + (value == value.max())})
    (unpaired,) = find_unpaired_matrices(ckpt)
    assert (unpaired.names, unpaired.belongs) == ((name_of(12, "q"), name_of(12, "k")), 20)


@pytest.mark.parametrize("order", [(1, 0), (2, 0, 3, 1)])
def test_ranks_that_changed_places(smollm2: Path, tmp_path: Path, order: tuple[int, ...]) -> None:
    (value,) = read_layer(open_checkpoint(str(smollm2)), 12, "up")
    parts = np.split(value, len(order))
    ckpt = open_changed(smollm2, tmp_path / "ranks", {name_of(12, "up"): np.concatenate([parts[at] for at in order])})
    (unpaired,) = find_unpaired_matrices(ckpt)
    assert unpaired.names == (name_of(12, "up"), name_of(12, "down"))


@pytest.mark.parametrize(
    ("part", "layers", "first"),
    [("up", (8, 15), "up"), ("gate", (12, 20), "gate"), ("v", (2, 7), "v"), ("o", (2, 7), "v")],
)
def test_matrices_of_two_layers(smollm2: Path, tmp_path: Path, part: str, layers: tuple[int, int], first: str) -> None:
    sound = open_checkpoint(str(smollm2))
    changed = {name_of(here, part): read_layer(sound, there, part)[0] for here, there in (layers, layers[::-1])}
    found = find_unpaired_matrices(open_changed(smollm2, tmp_path / "changed", changed))
    assert [(unpaired.names[0], unpaired.belongs) for unpaired in found] == [
        (name_of(layers[0], first), layers[1]),
        (name_of(layers[1], first), layers[0]),
    ]


def test_exchanged_gates_are_left_to_their_own_rule(smollm2: Path, tmp_path: Path) -> None:
    gate, up = read_layer(open_checkpoint(str(smollm2)), 12, "gate", "up")
    ckpt = open_changed(smollm2, tmp_path / "gates", {name_of(12, "gate"): up, name_of(12, "up"): gate})
    assert find_unpaired_matrices(ckpt) == []


def test_the_part_of_one_rank(smollm2: Path, tmp_path: Path) -> None:
    """A quarter of up that was not loaded keeps the spread of the rest, and other rows of the same matrix stand in for it."""
    (value,) = read_layer(open_checkpoint(str(smollm2)), 12, "up")
    mixed = value.copy()
    mixed[UNITS * 3 // 4 :] = np.roll(value, 1, 0)[UNITS * 3 // 4 :]
    (unpaired,) = find_unpaired_matrices(open_changed(smollm2, tmp_path / "changed", {name_of(12, "up"): mixed}))
    assert (unpaired.names, unpaired.parts) == ((name_of(12, "up"), name_of(12, "down")), (6, 7))


def test_layers_that_were_drawn(tmp_path: Path, smollm2: Path) -> None:
    """Where most layers are unpaired, nothing is usual."""
    sound = open_checkpoint(str(smollm2))
    changed = {
        name_of(layer, "gate"): np.random.default_rng(layer).permutation(read_layer(sound, layer, "gate")[0])
        for layer in range(30)
    }
    assert find_unpaired_matrices(open_changed(smollm2, tmp_path / "changed", changed)) == []
