"""Adapters on experts that transformers holds in one parameter (PEFT's `target_parameters`), against their base model."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from ckptcheck.verbs.scan import scan

EXPERTS, HIDDEN, INNER, RANK = 4, 16, 12, 2
MODULE = "model.layers.0.mlp.experts"


def write(
    folder: Path, file: str, shapes: dict[str, tuple[int, ...]], config: str, settings: dict[str, object]
) -> Path:
    folder.mkdir()
    random = np.random.default_rng(0)
    save_file({name: random.normal(0, 0.1, shape).astype(np.float32) for name, shape in shapes.items()}, folder / file)
    (folder / config).write_text(json.dumps(settings))
    return folder


def base(folder: Path, *, fused: bool) -> Path:
    shapes: dict[str, tuple[int, ...]] = {
        f"{MODULE}.gate_up_proj": (EXPERTS, 2 * INNER, HIDDEN),
        f"{MODULE}.down_proj": (EXPERTS, HIDDEN, INNER),
    }
    if not fused:
        shapes = {}
        for expert in range(EXPERTS):
            for name, shape in (("gate", (INNER, HIDDEN)), ("up", (INNER, HIDDEN)), ("down", (HIDDEN, INNER))):
                shapes[f"{MODULE}.{expert}.{name}_proj.weight"] = shape
    return write(folder, "model.safetensors", shapes, "config.json", {"model_type": "qwen3_moe"})


def adapter(folder: Path, pairs: dict[str, tuple[int, int, int]]) -> Path:
    """Write an adapter. pairs: module → rows of A, inputs, outputs."""
    shapes: dict[str, tuple[int, ...]] = {}
    for module, (ranks, inputs, outputs) in pairs.items():
        shapes[f"base_model.model.{module}.lora_A.weight"] = (ranks, inputs)
        shapes[f"base_model.model.{module}.lora_B.weight"] = (outputs, ranks)
    parameters = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]
    settings = {"peft_type": "LORA", "r": RANK, "lora_alpha": 4, "target_modules": [], "target_parameters": parameters}
    return write(folder, "adapter_model.safetensors", shapes, "adapter_config.json", settings)


def found(folder: Path, model: Path) -> list[str]:
    report = scan(folder, base=model)
    assert not report.crashed
    return [finding.message for finding in report.findings if finding.code == "ADP005"]


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("transposed", [True, False])
def test_both_layouts_of_peft_fit(tmp_path: Path, transposed: bool, fused: bool) -> None:
    ends = {f"{MODULE}.base_layer": (HIDDEN, 2 * INNER), MODULE: (INNER, HIDDEN)}
    pairs = {module: (RANK * EXPERTS, *(end[::-1] if transposed else end)) for module, end in ends.items()}
    assert found(adapter(tmp_path / "adapter", pairs), base(tmp_path / "base", fused=fused)) == []


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize(
    ("pairs", "reason"),
    [
        ({MODULE: (RANK * EXPERTS, INNER + 1, HIDDEN)}, "they make 16 × 13, and its experts are "),
        ({MODULE: (RANK * 8, INNER, HIDDEN)}, "they are for 8 experts, and it has 4: "),
        ({f"{MODULE}.4.down_proj": (RANK, INNER, HIDDEN)}, "it has 4 experts in that layer: "),
    ],
)
def test_what_does_not_fit_is_named(
    tmp_path: Path, pairs: dict[str, tuple[int, int, int]], reason: str, fused: bool
) -> None:
    [message] = found(adapter(tmp_path / "adapter", pairs), base(tmp_path / "base", fused=fused))
    assert message.startswith("1 pair of matrices for experts does not fit the base model: " + reason)
    assert message.endswith(next(iter(pairs)))


@pytest.mark.parametrize("fused", [True, False])
def test_one_expert_of_the_base_model_fits(tmp_path: Path, fused: bool) -> None:
    pairs = {f"{MODULE}.3.down_proj": (RANK, INNER, HIDDEN)}
    assert found(adapter(tmp_path / "adapter", pairs), base(tmp_path / "base", fused=fused)) == []
