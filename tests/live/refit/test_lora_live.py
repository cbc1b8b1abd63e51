"""Trials of a LoRA adapter on the real vLLM and SGLang: clean where all is well, and faults of each kind are named."""

from __future__ import annotations

import json
from pathlib import Path

import live
import numpy as np
import pytest
from safetensors.numpy import save_file

import ckptcheck
from ckptcheck.linter.report import Report
from ckptcheck.live.runtime.engines.vllm import VllmEngine
from tests.conftest import needs_engine
from tests.factories.live_bench import messages_by_code
from tests.paths import DOUBLES

pytestmark = [pytest.mark.engine]
SIZES = {"q_proj": (64, 128), "v_proj": (64, 64), "o_proj": (128, 64), "gate_proj": (64, 96), "down_proj": (96, 64)}
"""Module of the tiny Qwen3 → its inputs and outputs."""


def write_adapter(folder: Path, rank: int = 4, seed: int = 1) -> Path:
    folder.mkdir()
    draw, tensors = np.random.default_rng(seed), {}
    for layer in range(2):
        for module, (inputs, outputs) in SIZES.items():
            parent = "self_attn" if module in ("q_proj", "v_proj", "o_proj") else "mlp"
            name = f"base_model.model.model.layers.{layer}.{parent}.{module}"
            tensors[f"{name}.lora_A.weight"] = (0.3 * draw.standard_normal((rank, inputs))).astype(np.float32)
            tensors[f"{name}.lora_B.weight"] = (0.3 * draw.standard_normal((outputs, rank))).astype(np.float32)
    save_file(tensors, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": 2 * rank, "target_modules": list(SIZES), "bias": "none"}
    (folder / "adapter_config.json").write_text(json.dumps({**config, "task_type": "CAUSAL_LM"}))
    return folder


def run(folder: Path, engine: str, **options: str) -> Report:
    needs_engine(engine)
    return ckptcheck.lora(
        live.write("qwen3", folder / "base"), write_adapter(folder / "lora"), engine=engine, **options
    )  # type: ignore[arg-type]


def test_vllm_serves_replaces_and_evicts_adapters(tmp_path: Path) -> None:
    report = run(tmp_path, "vllm")
    assert (report.verdict, report.findings) == ("clean", ())
    assert {"REF048"} <= set(report.passed)


@pytest.mark.matrix
def test_sglang_serves_replaces_and_evicts_adapters(tmp_path: Path) -> None:
    report = run(tmp_path, "sglang")
    assert (report.verdict, report.findings) == ("clean", ())
    assert {"REF048"} <= set(report.passed)


def test_vllm_serves_the_old_adapter_to_requests_with_its_name_and_another_path(tmp_path: Path) -> None:
    found = messages_by_code(run(tmp_path, "vllm", update="same"))
    assert found.keys() == {"REF048"}
    assert "requests still get the old one: its slot holds what the first load wrote" in found["REF048"]


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        ("scale", "REF048"),
        pytest.param("nothing", "REF048", marks=pytest.mark.matrix),
        pytest.param("slot", "REF048", marks=pytest.mark.matrix),
    ],
)
def test_faults_of_adapters_in_vllm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str, code: str) -> None:
    monkeypatch.setattr(VllmEngine, "module", DOUBLES / "faulty_vllm_lora.py")
    monkeypatch.setattr(VllmEngine, "variables", {**VllmEngine.variables, "CKPTCHECK_LORA_FAULT": fault})
    found = messages_by_code(run(tmp_path, "vllm"))
    assert code in found, found
    if fault == "nothing":
        assert "requests with the adapter get the logprobs of the base model" in found[code]
    elif fault == "slot":
        assert "tensors of the adapter's slot are not what its first load wrote" in found[code]
