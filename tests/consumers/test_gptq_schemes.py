"""Which of GPTQ's settings a module has, for the names that a real matcher sees: its own, a fused one, an expert's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from ckptcheck.checkpoint.open import open_checkpoint
from ckptcheck.consumers.grouped_faults import make_scheme_selector

EXPERTS = [f"model.layers.0.mlp.experts.{number}.{name}_proj" for number in (0, 11) for name in ("gate", "up", "down")]
MODULES = ["model.layers.0.self_attn.q_proj", "model.layers.0.self_attn.o_proj", *EXPERTS]


def settings(folder: Path, dynamic: dict[str, Any]) -> dict[str, list[int | None]]:
    """Module → the bits of each scheme that it may have, None for a module that is left alone."""
    gptq = {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False, "sym": True, "dynamic": dynamic}
    config = {"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "quantization_config": gptq}
    (folder / "config.json").write_text(json.dumps(config))
    words = np.zeros((4, 32), np.int32)
    save_file({f"{module}.qweight": words for module in MODULES}, folder / "model.safetensors", {"format": "pt"})
    choose = make_scheme_selector(open_checkpoint(str(folder)))
    assert choose is not None
    return {name: [found.weights.bits if found.weights else None for found in choose(name)] for name in MODULES}


@pytest.mark.parametrize(
    ("dynamic", "module", "bits"),
    [
        ({"+:.*q_proj": {"bits": 8}}, "self_attn.q_proj", [8]),
        ({"+:.*q_proj": {"bits": 8}}, "self_attn.o_proj", [4]),
        ({r"+:.*\.qkv_proj": {"bits": 8}}, "self_attn.q_proj", [4, 8]),
        ({r"+:.*\.qkv_proj": {"bits": 8}, ".*q_proj": {"bits": 3}}, "self_attn.q_proj", [3]),
        ({"-:.*q_proj": {}, ".*q_proj": {"bits": 8}}, "self_attn.q_proj", [None]),
        ({".*q_proj": {"bits": 8}, "-:.*q_proj": {}}, "self_attn.q_proj", [8]),
        ({"-:q_proj": {}}, "self_attn.q_proj", [4]),
        ({".*experts$": {"bits": 8}}, "mlp.experts.11.up_proj", [4, 8]),
        ({r".*experts\.11\.": {"bits": 8}}, "mlp.experts.11.up_proj", [8]),
        ({r".*experts\.11\.": {"bits": 8}}, "mlp.experts.0.up_proj", [4]),
        ({".*q_proj": {"bits": "8"}}, "self_attn.q_proj", [4]),
        ({".*q_proj": "8"}, "self_attn.q_proj", []),
        ({".*q_proj": {"quant_method": "awq"}}, "self_attn.q_proj", []),
        ({"(": {"bits": 8}}, "self_attn.q_proj", [4, 8]),
    ],
)
def test_the_first_pattern_that_takes_the_name_decides(
    dynamic: dict[str, Any], module: str, bits: list[int | None], tmp_path: Path
) -> None:
    assert settings(tmp_path, dynamic)[f"model.layers.0.{module}"] == bits
