"""Square matrices of a real model, transposed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import packers
import pytest
import quantized
from quantization_recipes import RECIPES

from ckptcheck.checkpoint.open import open_checkpoint
from ckptcheck.linter import rule_loader
from ckptcheck.linter.runner import run_rules
from ckptcheck.values.value_pass import ValuePass
from tests.factories.value_cases import copy_with_values, read_raw_values

RULES = [rule for rule in rule_loader.load_rules() if rule.code == "VAL021"]


def find_keys(folder: Path) -> set[str]:
    report = run_rules(open_checkpoint(str(folder), value_reader=ValuePass()), RULES)
    assert not report.crashed
    assert not report.skipped
    return {finding.key or "" for finding in report.findings}


def transpose(source: Path, target: Path, names: list[str]) -> Path:
    ckpt = open_checkpoint(str(source))
    values = {}
    for name in names:
        raw = np.frombuffer(read_raw_values(ckpt, name), "<u2").reshape(ckpt.tensors[name].shape)
        values[name] = np.ascontiguousarray(raw.T).tobytes()
    return copy_with_values(source, target, values)


@pytest.mark.xdist_group("smollm2")
def test_each_square_matrix_of_a_real_model(smollm2: Path, tmp_path: Path) -> None:
    """One third of the layers at a time, so that siblings alone do not say what is right."""
    for module in ("q_proj", "o_proj"):
        for part in range(3):
            names = [f"model.layers.{layer}.self_attn.{module}.weight" for layer in range(part, 30, 3)]
            folder = transpose(smollm2, tmp_path / f"{module}{part}", names)
            report = run_rules(open_checkpoint(str(folder), value_reader=ValuePass()), RULES)
            assert sum(int(finding.message.split()[0]) for finding in report.findings) == 10
            assert {finding.key for finding in report.findings} <= set(names)


@pytest.mark.xdist_group("smollm2")
def test_a_matrix_in_every_layer(smollm2: Path, tmp_path: Path) -> None:
    assert find_keys(smollm2) == set()
    names = [f"model.layers.{layer}.self_attn.o_proj.weight" for layer in range(30)]
    assert len(find_keys(transpose(smollm2, tmp_path / "all", names)) & set(names)) == 3


def test_no_matrix_of_a_trained_encoder(minilm: Path) -> None:
    assert find_keys(minilm) == set()


@pytest.mark.xdist_group("smollm2")
@pytest.mark.parametrize(("recipe", "reported"), [("fp8-tensor", True), ("fp8-block", False)])
def test_a_matrix_that_was_transposed_and_then_quantized(
    smollm2: Path, tmp_path: Path, recipe: str, reported: bool
) -> None:
    """Scales of blocks make steps along both axes, and those are not judged."""
    name = "model.layers.3.self_attn.q_proj.weight"
    (pack,) = RECIPES[recipe].packs.values()
    tensors: packers.Stored = {}
    for shard in sorted(smollm2.glob("model-*.safetensors")):
        for tensor, value in quantized.read(shard):
            if tensor.startswith(tuple(f"model.layers.{layer}." for layer in range(6))):
                weight = value.T if tensor == name else value
                module = tensor.removesuffix(".weight")
                tensors |= (
                    {f"{module}.{role}": stored for role, stored in pack(weight).items()}
                    if value.ndim == 2
                    else {tensor: ("BF16", packers.bf16(value))}
                )
    packers.write(tmp_path / "model.safetensors", tensors)
    assert find_keys(tmp_path) == ({name} if reported else set())
