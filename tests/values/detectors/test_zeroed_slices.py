"""Experts, adapters and columns that are zero where similar ones are not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from ckptcheck.checkpoint.open import open_checkpoint
from ckptcheck.linter.runner import run_rules
from ckptcheck.values.value_pass import ValuePass
from tests.factories.checkpoint_cases import CHECKPOINTS
from tests.factories.value_cases import VALUE_RULES, copy_with_values, find_messages, read_raw_values, run_value_rules

LAYER = "model.layers.12."


def write_adapter(folder: Path, zero: set[str]) -> Path:
    random = np.random.default_rng(0)
    tensors = {}
    for layer in range(6):
        for module in ("self_attn.q_proj", "self_attn.v_proj", "mlp.experts.3.up_proj"):
            name = f"base_model.model.model.layers.{layer}.{module}"
            tensors[f"{name}.lora_A.weight"] = random.normal(0, 0.1, (4, 16)).astype("f4")
            value = random.normal(0, 0.1, (16, 4)).astype("f4")
            tensors[f"{name}.lora_B.weight"] = value * (f"{layer}.{module}" not in zero)
    folder.mkdir()
    save_file(tensors, folder / "adapter_model.safetensors", {"format": "pt"})
    (folder / "adapter_config.json").write_text('{"peft_type": "LORA", "r": 4}')
    return folder


def test_the_adapter_of_one_layer_is_zero(tmp_path: Path) -> None:
    assert find_messages(write_adapter(tmp_path / "lora", {"3.self_attn.q_proj"}), "VAL004") == [
        "1 adapter is all zero, and those of most other layers are not"
    ]


def test_adapters_that_may_be_zero(tmp_path: Path) -> None:
    """None trained, one layer left out, the queries trained in half of the layers, an expert that no token chose."""
    queries, values = ([f"{layer}.self_attn.{name}_proj" for layer in range(6)] for name in "qv")
    for number, zero in enumerate(
        (
            {*queries, *values},
            {queries[2], values[2], "2.mlp.experts.3.up_proj"},
            {*queries[:3]},
            {"4.mlp.experts.3.up_proj"},
        )
    ):
        assert find_messages(write_adapter(tmp_path / str(number), zero), "VAL004") == []


@pytest.mark.parametrize("experts", [range(4), [1]])
def test_experts_that_are_zero(tmp_path: Path, experts: list[int]) -> None:
    """Numbered experts are told as those in one tensor are."""
    random = np.random.default_rng(1)
    folder = tmp_path / "moe"
    folder.mkdir()
    source = CHECKPOINTS / "tiny-qwen3-moe"
    (folder / "config.json").write_bytes((source / "config.json").read_bytes())
    tensors = load_file(source / "model.safetensors")
    for name in list(tensors):
        if ".experts." in name:
            layer, expert = (int(part) for part in name.split(".") if part.isdigit())
            value = random.normal(0, 0.02, (32, 32)).astype(np.float32)
            tensors[name] = np.zeros_like(value) if layer == 1 and expert in experts else value
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    (rule,) = (rule for rule in VALUE_RULES if rule.code == "VAL005")
    report = run_rules(open_checkpoint(str(folder), value_reader=ValuePass()), [rule])
    assert [finding.severity for finding in report.findings] == ["error"]
    assert report.findings[0].message.endswith(f"; {3 * len(experts)} matrices are zero as a whole")


@pytest.mark.slow
def test_half_of_the_columns_lost(smollm2: Path, tmp_path: Path) -> None:
    """Rank 1 of 2 of a row-parallel layer: 576 bytes of zeros in each row, too short for a block."""
    name = LAYER + "self_attn.o_proj.weight"
    value = np.frombuffer(read_raw_values(open_checkpoint(str(smollm2)), name), "<u2").reshape(576, 576).copy()
    value[:, 288:] = 0
    findings = run_value_rules(copy_with_values(smollm2, tmp_path / "lost", {name: value.tobytes()}))
    assert [(finding.code, finding.key) for finding in findings] == [("VAL005", name)]
    assert findings[0].message.startswith("columns 288-575 of 576 are zero in every row")


def test_a_rank_lost_of_every_layer_is_said_once_a_shard(smollm2: Path, tmp_path: Path) -> None:
    ckpt, values = open_checkpoint(str(smollm2)), {}
    for layer in range(30):
        name = LAYER.replace("12", str(layer)) + "self_attn.o_proj.weight"
        value = np.frombuffer(read_raw_values(ckpt, name), "<u2").reshape(576, 576).copy()
        value[:, 288:] = 0
        values[name] = value.tobytes()
    findings = run_value_rules(copy_with_values(smollm2, tmp_path / "lost", values))
    assert [finding.code for finding in findings] == ["VAL005"] * len({ckpt.tensor_to_file[name] for name in values})
    assert findings[0].message.startswith("columns 288-575 of 576 are zero in every row, and so are columns of ")
