"""What no trial can do is said before anything is loaded."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ckptcheck.checkpoint.open import open_checkpoint
from ckptcheck.errors import CkptcheckError
from ckptcheck.live.refit.feasibility import (
    require_dtype,
    require_engine_layout,
    require_experts,
    require_plain_source,
    require_second_load,
)
from tests.factories.checkpoint_cases import CHECKPOINTS


def write_with(folder: Path, **settings: Any) -> Path:
    shutil.copytree(CHECKPOINTS / "tiny-llama", folder)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    (folder / "config.json").write_text(json.dumps({**config, **settings}), encoding="utf-8")
    return folder


@pytest.mark.parametrize(
    ("declared", "words"),
    [
        ({"quant_method": "mxfp4"}, ("(mxfp4)",)),
        (
            {"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized"},
            ("(compressed-tensors, nvfp4-pack-quantized)",),
        ),
        (
            {"quant_method": "modelopt", "quant_algo": "MXFP8"},
            ("mxfp8",),
        ),
        ({"quant_method": "awq", "bits": 4}, ("(awq)", "--quantize w4a16, w8a8 or fp8")),
        ({"bits": 4}, ("by a method that it does not name",)),
        ({"quant_method": 7, "format": ["a"]}, ("is quantized",)),
    ],
)
def test_a_packed_source_is_refused_with_its_format(
    tmp_path: Path, declared: dict[str, Any], words: tuple[str, ...]
) -> None:
    with pytest.raises(CkptcheckError) as refusal:
        require_plain_source(open_checkpoint(str(write_with(tmp_path / "packed", quantization_config=declared))))
    text = f"{refusal.value.message} {refusal.value.hint}"
    assert all(word in text for word in words), text


def test_a_plain_source_is_no_refusal(tmp_path: Path) -> None:
    require_plain_source(open_checkpoint(str(CHECKPOINTS / "tiny-llama")))
    require_plain_source(open_checkpoint(str(write_with(tmp_path / "null", quantization_config=None))))


def test_linear_attention_needs_bfloat16_where_the_engine_says_so(tmp_path: Path) -> None:
    source = open_checkpoint(str(write_with(tmp_path / "gdn", linear_num_value_heads=4)))
    with pytest.raises(CkptcheckError, match="gated delta rule, which vLLM computes in bfloat16 only on a CPU"):
        require_dtype(source, "vllm", "float32", is_cpu_build=True)
    require_dtype(source, "vllm", "bfloat16", is_cpu_build=True)
    require_dtype(source, "vllm", "float32", is_cpu_build=False)
    require_dtype(source, "sglang", "float32", is_cpu_build=True)
    require_dtype(open_checkpoint(str(CHECKPOINTS / "tiny-llama")), "vllm", "float32", is_cpu_build=True)


def wide_experts() -> Any:
    """Return a mixture of experts with rows of 64, which groups of 4 bits divide."""
    names = [f"self_attn.{part}_proj" for part in "qkvo"] + ["mlp.gate"]
    names += [f"mlp.experts.{number}.{part}_proj" for number in range(2) for part in ("gate", "up", "down")]
    tensors = {f"model.layers.0.{name}.weight": SimpleNamespace(shape=(64, 64)) for name in names}
    tensors["lm_head.weight"] = SimpleNamespace(shape=(256, 64))
    return SimpleNamespace(tensors=tensors, config=SimpleNamespace(architecture="Qwen3MoeForCausalLM"))


@pytest.mark.parametrize(
    ("model", "scheme", "ignore"),
    [
        ("tiny-llama", "fp8", None),
        ("tiny-llama", "w8a8", None),
        ("tiny-qwen3-moe", "fp8", ["re:.*self_attn.*", "re:.*mlp.gate$", "lm_head"]),
        ("tiny-qwen3-moe", "w4a16", ["re:.*mlp.gate$", "lm_head"]),
    ],
)
def test_weights_that_sglang_cannot_load_again_on_a_gpu_are_refused(
    model: str, scheme: str, ignore: list[str] | None
) -> None:
    source = wide_experts() if "moe" in model else open_checkpoint(str(CHECKPOINTS / model))
    with pytest.raises(CkptcheckError, match=f"SGLang 0.5.23 cannot load weights in {scheme} a second time on a GPU"):
        require_second_load(source, "sglang", "0.5.23", scheme, ignore, is_cpu_build=False)
    require_second_load(source, "sglang", "0.5.23", scheme, ignore, is_cpu_build=True)
    require_second_load(source, "sglang", "0.6.0", scheme, ignore, is_cpu_build=False)
    require_second_load(source, "vllm", "0.32.0", scheme, ignore, is_cpu_build=False)


def test_experts_alone_in_four_bits_are_loaded_again() -> None:
    source = wide_experts()
    ignore = ["re:.*self_attn.*", "re:.*mlp.gate$", "lm_head"]
    require_second_load(source, "sglang", "0.5.23", "w4a16", ignore, is_cpu_build=False)


@pytest.mark.parametrize(
    ("engine", "layout", "sentence"),
    [
        ("vllm", {"tp": 4, "ep": 2}, "--set engine-ep=2: vLLM spreads experts over all of its 4 tensor-parallel ranks"),
        ("sglang", {"tp": 2, "ep": 4}, "--set engine-ep=4 does not divide the 2 ranks of --engine-tp"),
        ("vllm", {"ep": 2}, "vLLM spreads experts over all of its 1 tensor-parallel ranks"),
    ],
)
def test_a_layout_that_no_trial_starts_is_refused(engine: str, layout: dict[str, int], sentence: str) -> None:
    with pytest.raises(CkptcheckError, match=sentence):
        require_engine_layout(engine, **{"tp": 1, "ep": 1, **layout})


def test_experts_are_spread_over_ranks_where_there_are_any() -> None:
    require_engine_layout("vllm", tp=2, ep=2)
    require_engine_layout("sglang", tp=4, ep=2)
    require_experts(open_checkpoint(str(CHECKPOINTS / "tiny-qwen3-moe")), 2)
    require_experts(open_checkpoint(str(CHECKPOINTS / "tiny-llama")), 1)
    with pytest.raises(CkptcheckError, match="tiny-llama has no experts"):
        require_experts(open_checkpoint(str(CHECKPOINTS / "tiny-llama")), 2)
