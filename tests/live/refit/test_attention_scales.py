"""An FP8 KV cache with calibrated scales through refit, on the real vLLM; SGLang has one only on CPUs with AMX."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from ckptcheck.live.runtime.engines.vllm import VllmEngine, VllmOptions
from tests.conftest import needs_engine
from tests.doubles.faults import faulty_engines, set_number
from tests.factories.live_bench import LiveTrials, drop_tensors, messages_by_code

pytestmark = [pytest.mark.engine, pytest.mark.xdist_group("vllm-cpu")]
LAYERS = 2
AT = "model.layers.1.self_attn."


def calibrate(checkpoint: Path) -> None:
    """Give a checkpoint the scales of an FP8 cache, as llm-compressor writes them; its matrices stay as they are."""
    tensors = load_file(checkpoint / "model.safetensors")
    for layer in range(LAYERS):
        for part, scale in (("k", 0.03), ("v", 0.005)):
            tensors[f"model.layers.{layer}.self_attn.{part}_scale"] = np.full(1, scale * (layer + 1), np.float32)
    save_file(tensors, checkpoint / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((checkpoint / "config.json").read_text())
    config["quantization_config"] = {
        "quant_method": "compressed-tensors",
        "format": "dense",
        "quantization_status": "frozen",
        "ignore": [],
        "config_groups": {},
        "kv_cache_scheme": {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False, "symmetric": True},
    }
    (checkpoint / "config.json").write_text(json.dumps(config))


def start_vllm(checkpoint: Path) -> VllmEngine:
    return VllmEngine(checkpoint, VllmOptions(extra_arguments={"kv_cache_dtype": "fp8_e4m3"}))


@pytest.fixture(scope="module")
def vllm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveTrials]:
    needs_engine("vllm")
    with faulty_engines():
        made = LiveTrials(tmp_path_factory.mktemp("scales"), start_vllm, "qwen3", "reload", calibrate)
        yield made
        made.close()


def test_scales_that_follow_the_weights_are_clean(vllm: LiveTrials) -> None:
    report = vllm.trial()
    assert (report.verdict, report.findings) == ("clean", ())
    assert {"REF005", "REF047"} <= set(report.passed)


def test_a_copy_on_the_host_that_is_not_made_anew(vllm: LiveTrials) -> None:
    """The tensor follows, and what kernels read beside it does not."""

    def put_back(engine: Any, number: int) -> None:
        if number > 1:
            set_number(engine, f"{AT}attn", "_k_scale_float", np.float32(0.06).item())

    found = messages_by_code(vllm.trial(after=put_back))
    assert found.keys() == {"REF047"}
    assert found["REF047"].startswith(f"after sync 2, {AT}attn._k_scale_float is 0.06 (a cold load makes it 0.0")
    assert found["REF047"].endswith(f"; that is the value from before the step; {AT}attn._k_scale is right")


def test_scales_that_are_not_sent(vllm: LiveTrials) -> None:
    names = [name for name in vllm.held if name.endswith("_scale")]
    found = messages_by_code(vllm.trial(drop_tensors(*names)))
    assert found.keys() == {"REF005", "REF047"}
    assert f"{AT}attn._k_scale" in found["REF005"]
    assert f"{AT}attn._k_scale_float is 0.06 (a cold load makes it 0.06" in found["REF047"]
    assert found["REF047"].endswith("that is the value from before the step")


def test_the_scale_of_the_logits_changes(vllm: LiveTrials) -> None:
    found = messages_by_code(vllm.trial(after=lambda engine, _: set_number(engine, "logits_processor", "scale", 1.01)))
    set_number(vllm.tested, "logits_processor", "scale", 1.0)
    assert found == {"REF047": "after sync 1, logits_processor.scale is 1.01 (a cold load makes it 1)"}
