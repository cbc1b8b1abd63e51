"""Zero points and scales of real weights that are quantized here, sound and damaged."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import packers
import pytest
import quantized
from quantization_recipes import RECIPES

from ckptcheck.checkpoint.open import open_checkpoint
from ckptcheck.linter import rule_loader
from ckptcheck.linter.rule import Finding
from ckptcheck.linter.runner import run_rules
from ckptcheck.values.value_pass import ValuePass

pytestmark = pytest.mark.xdist_group("smollm2")

RULES = [rule for rule in rule_loader.load_rules() if rule.code in ("QNT029", "QNT030")]
MODULES = ("self_attn.q_proj", "self_attn.v_proj", "mlp.up_proj")
LAYERS = range(8)
FORMATS = {
    "ct-w4a16", "ct-w4a16-asym", "ct-w3a16", "ct-w8a8-int8", "ct-fp8-block", "ct-nvfp4", "ct-mxfp4", "ct-mxfp8", "fp8-block",
    "fp8-tensor", "gptq", "awq", "modelopt-fp8", "modelopt-nvfp4",
}  # fmt: skip
SCALES = ("weight_scale_2", "weight_global_scale", "weight_scale", "weight_scale_inv", "scales")
"""Roles of scales; the one above the others comes first."""


@pytest.fixture(scope="module")
def weights(smollm2: Path) -> dict[str, np.ndarray]:
    """Some matrices of SmolLM2, as float32."""
    wanted = {f"model.layers.{layer}.{module}.weight" for layer in LAYERS for module in MODULES}
    read = (tensor for shard in sorted(smollm2.glob("model-*.safetensors")) for tensor in quantized.read(shard))
    return {name: value for name, value in read if name in wanted}


def write(weights: dict[str, np.ndarray], recipe: str, folder: Path, change: Callable[[packers.Stored], None]) -> Path:
    """Quantize the matrices by a recipe, change the tensors, and write them."""
    (pack,) = list(RECIPES[recipe].packs.values())[:1]
    tensors: packers.Stored = {
        f"{name.removesuffix('.weight')}.{role}": stored
        for name, value in weights.items()
        for role, stored in pack(value).items()
    }
    change(tensors)
    folder.mkdir()
    packers.write(folder / "model.safetensors", tensors)
    config = {"model_type": "llama", "quantization_config": RECIPES[recipe].config}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


def scan(folder: Path) -> list[Finding]:
    report = run_rules(open_checkpoint(str(folder), value_reader=ValuePass()), RULES)
    assert not report.crashed
    assert not report.skipped
    return list(report.findings)


def find_scale(tensors: packers.Stored, module: str) -> str:
    return next(name for role in SCALES if (name := f"{module}.{role}") in tensors)


def multiply(tensors: packers.Stored, name: str, factor: float) -> None:
    """Multiply a scale; a factor of 0 stands for the reciprocal."""
    dtype, value = tensors[name]
    if dtype == "U8":
        exponent = value.astype(int)
        new = 254 - exponent if not factor else exponent + round(np.log2(factor))
        tensors[name] = (dtype, new.clip(0, 254).astype(np.uint8))
        return
    numbers = packers.from_bf16(value) if dtype == "BF16" else value.astype(np.float64)
    new = numbers * factor if factor else 1 / numbers
    tensors[name] = (dtype, packers.bf16(new) if dtype == "BF16" else np.asarray(new, value.dtype))


@pytest.mark.parametrize("recipe", sorted(FORMATS))
def test_scales_of_one_layer_in_every_format(recipe: str, weights: dict[str, np.ndarray], tmp_path: Path) -> None:
    assert scan(write(weights, recipe, tmp_path / "sound", lambda _: None)) == []
    for number, factor in enumerate((200.0, 1 / 200, 0.0)):
        names: list[str] = []

        def damage(tensors: packers.Stored, factor: float = factor, names: list[str] = names) -> None:
            names += [find_scale(tensors, f"model.layers.{layer}.{module}") for layer, module in enumerate(MODULES, 2)]
            for name in names:
                multiply(tensors, name, factor)

        findings = scan(write(weights, recipe, tmp_path / str(number), damage))
        assert {finding.key for finding in findings} == set(names)
        assert {finding.code for finding in findings} == {"QNT030"}


@pytest.mark.parametrize("recipe", sorted(FORMATS))
def test_reciprocals_in_every_layer(recipe: str, weights: dict[str, np.ndarray], tmp_path: Path) -> None:
    def damage(tensors: packers.Stored) -> None:
        for name in weights:
            multiply(tensors, find_scale(tensors, name.removesuffix(".weight")), 0.0)

    (finding,) = [
        item for item in scan(write(weights, recipe, tmp_path / "model", damage)) if "half of" in item.message
    ]
    assert "the scales are reciprocals, or of another kind" in finding.message


def shift_words(name: str, step: int) -> Callable[[packers.Stored], None]:
    """Return a change that adds a step to all zero points of four bits whose name ends so."""

    def change(tensors: packers.Stored) -> None:
        for key, (dtype, value) in list(tensors.items()):
            if key.endswith(name):
                codes = (packers.unpack(value, 4, value.shape[1] * 8) + step) % 16
                tensors[key] = (dtype, packers.pack(codes, 4))

    return change


def reorder_words(name: str) -> Callable[[packers.Stored], None]:
    """Return a change that writes the eight numbers of each word in AWQ's order."""

    def change(tensors: packers.Stored) -> None:
        for key, (dtype, value) in list(tensors.items()):
            if key.endswith(name):
                codes = packers.unpack(value, 4, value.shape[1] * 8).reshape(len(value), -1, 8)
                tensors[key] = (dtype, packers.pack(codes[..., packers.AWQ_ORDER].reshape(len(value), -1), 4))

    return change


@pytest.mark.parametrize(
    ("recipe", "role"), [("gptq", "qzeros"), ("awq", "qzeros"), ("ct-w4a16-asym", "weight_zero_point")]
)
def test_zero_points_that_are_one_off(recipe: str, role: str, weights: dict[str, np.ndarray], tmp_path: Path) -> None:
    for step in (1, -1):
        for place, number in (("", 24), (".3.mlp.up_proj.", 1)):
            folder = tmp_path / f"{step}{number}"
            # Rows of zero points are packed along the outputs, so each word holds eight zero points in either format.
            (finding,) = scan(write(weights, recipe, folder, shift_words(f"{place}{role}", step)))
            assert finding.code == "QNT029"
            assert f"in {number} weight" in finding.message
            assert "below" in finding.message if step == 1 else "above" in finding.message


def test_zero_points_in_another_order(weights: dict[str, np.ndarray], tmp_path: Path) -> None:
    (finding,) = scan(write(weights, "awq", tmp_path / "one", reorder_words(".3.mlp.up_proj.qzeros")))
    assert "in 1 weight of 24 the integers do not follow their zero points" in finding.message


def test_zero_points_of_the_second_format_declared_as_the_first(weights: dict[str, np.ndarray], tmp_path: Path) -> None:
    folder = write(weights, "gptq", tmp_path / "model", shift_words("qzeros", 1))
    (finding,) = scan(folder)
    assert "they are stored as they are, and the config declares gptq" in finding.message
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config["quantization_config"]["checkpoint_format"] = "gptq_v2"
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    assert scan(folder) == []
