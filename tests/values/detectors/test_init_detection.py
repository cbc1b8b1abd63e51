"""Matrices that hold the values of an initialiser, among trained ones."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from ckptcheck.checkpoint.open import open_checkpoint
from ckptcheck.values.value_pass import ValuePass
from tests.conftest import needs
from tests.factories.value_cases import copy_with_values, run_value_rules

pytestmark = pytest.mark.slow

LAYER = "model.layers.12."


@pytest.mark.parametrize("seed", [0, 1])
def test_every_initialiser_is_seen_among_trained_layers(smollm2: Path, tmp_path: Path, seed: int) -> None:
    needs("torch")
    import torch

    torch.manual_seed(seed)
    initialisers: dict[str, Callable[[torch.Tensor], object]] = {
        "5.self_attn.q_proj": lambda weight: torch.nn.init.normal_(weight, 0, 0.02),
        "6.self_attn.k_proj": torch.nn.init.xavier_uniform_,
        "7.self_attn.v_proj": lambda weight: torch.nn.init.kaiming_uniform_(weight, a=5**0.5),
        "8.self_attn.o_proj": torch.nn.init.kaiming_normal_,
        "9.mlp.up_proj": lambda weight: torch.nn.init.trunc_normal_(weight, std=0.02, a=-0.04, b=0.04),
        "29.mlp.gate_proj": torch.nn.init.xavier_normal_,
        "29.mlp.down_proj": torch.nn.init.orthogonal_,
    }
    initialisers = {f"model.layers.{name}.weight": sample for name, sample in initialisers.items()}
    initialisers["model.embed_tokens.weight"] = lambda weight: torch.nn.init.normal_(weight, 0, 0.02)
    ckpt, values = open_checkpoint(str(smollm2)), {}
    for name, sample in initialisers.items():
        weight = torch.empty(ckpt.tensors[name].shape)
        sample(weight)
        values[name] = weight.to(torch.bfloat16).view(torch.uint16).numpy().tobytes()
    values[LAYER + "input_layernorm.weight"] = np.full(576, 0x3F80, "<u2").tobytes()
    from ckptcheck.values.detectors.init_detection import find_init_groups

    folder = copy_with_values(smollm2, tmp_path / "fresh", values)
    groups = find_init_groups(open_checkpoint(str(folder), value_reader=ValuePass()))
    assert {sample.name for group in groups for sample in group.at_init} == initialisers.keys()
    findings = run_value_rules(folder)
    assert {finding.code for finding in findings} == {"VAL012"}
    assert {finding.severity for finding in findings} == {"warning"}
    assert LAYER + "input_layernorm.weight" in {finding.key for finding in findings}


def test_no_trained_encoder_looks_fresh(minilm: Path) -> None:
    """all-MiniLM-L6-v2 in float32. Its pooler does look fresh: it was never trained, and nothing uses it."""
    assert run_value_rules(minilm) == []


@pytest.mark.parametrize("moved", ["nothing", "rows", "columns", "means of rows", "means of columns"])
def test_a_slight_structure_shows_training(tmp_path: Path, moved: str) -> None:
    """A few percent between rows or columns leaves the bell as it was, within chance, and yet is no accident."""
    from ckptcheck.values.detectors.init_detection import find_init_groups

    random = np.random.default_rng(2)
    trained = {
        f"{name}.weight": (random.normal(0, 0.02, (64, 64)) * np.exp(random.normal(0, 0.5, (64, 1)))).astype("f4")
        for name in "abc"
    }
    value = random.normal(0, 0.02, (512, 512))
    match moved:
        case "rows":
            value *= np.exp(random.normal(0, 0.035, (512, 1)))
        case "columns":
            value *= np.exp(random.normal(0, 0.035, (1, 512)))
        case "means of rows":
            value += random.normal(0, 0.002, (512, 1))
        case "means of columns":
            value += random.normal(0, 0.002, (1, 512))
    save_file(trained | {"other.weight": value.astype("f4")}, tmp_path / "model.safetensors", {"format": "pt"})
    groups = find_init_groups(open_checkpoint(str(tmp_path), value_reader=ValuePass()))
    assert [sample.name for group in groups for sample in group.at_init] == (
        ["other.weight"] if moved == "nothing" else []
    )
