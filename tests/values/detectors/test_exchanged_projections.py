"""Projections of a layer that hold each other's weights, in real models."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from ckptcheck import scan
from ckptcheck.checkpoint.open import open_checkpoint
from ckptcheck.values.detectors.exchanged_projections import find_exchanged_projections, iter_blocks, measure_agreement
from ckptcheck.values.value_pass import ValuePass

GATE, UP = "mlp.gate_proj", "mlp.up_proj"
KEY, VALUE = "self_attn.k_proj", "self_attn.v_proj"


def exchange(source: Path, target: Path, first: str, second: str, layers: range) -> Path:
    import damage

    damage.linked_copy(source, target)
    names = {f"model.layers.{layer}.{first}.weight": f"model.layers.{layer}.{second}.weight" for layer in layers}
    damage.exchange(target, names)
    return target


@pytest.mark.parametrize(
    ("first", "second", "layers", "found"),
    [
        (UP, GATE, range(12, 13), {12}),
        (UP, GATE, range(30), {*range(30)} - {1, 2}),
        (KEY, VALUE, range(12, 13), {12}),
        (KEY, VALUE, range(30), {*range(30)} - {0, 24, 27}),
    ],
)
def test_exchanged_projections_of_a_real_model(
    smollm2: Path, tmp_path: Path, first: str, second: str, layers: range, found: set[int]
) -> None:
    folder = exchange(smollm2, tmp_path / "exchanged", first, second, layers)
    pairs = find_exchanged_projections(open_checkpoint(str(folder), value_reader=ValuePass()))
    assert [(pair.first, pair.second) for pair in pairs] == [(first.split(".")[1], second.split(".")[1])]
    assert set(pairs[0].layers) == found
    assert (pairs[0].usual < 0) == (len(layers) == 30)


@pytest.mark.slow
def test_no_layer_of_a_trained_encoder_is_doubted(minilm: Path) -> None:
    ckpt = open_checkpoint(str(minilm), value_reader=ValuePass())
    agreements = [
        measure_agreement(ckpt, block) for stack in ckpt.layout.stacks.values() for block in iter_blocks(ckpt, stack)
    ]
    assert len(agreements) == 6
    assert min(sum(agreement.differences) for agreement in agreements) > 0.9
    assert find_exchanged_projections(ckpt) == []


def test_query_heads_are_not_guessed_without_a_config(smollm2: Path, tmp_path: Path) -> None:
    """Which of them share a key head decides what belongs together; a sound model looked exchanged in seven layers."""
    folder = tmp_path / "weights"
    shutil.copytree(smollm2, folder, copy_function=os.link)
    (folder / "config.json").unlink()
    report = scan(folder, select=["VAL019", "VAL021", "VAL029", "VAL031"])
    assert report.findings == ()
    assert "VAL019" in report.passed
