"""The built-in tables against the real mbridge, name by name and row by row."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ckptcheck.checkpoint.config import Config
from ckptcheck.compare.bridge.families import TABLES
from ckptcheck.compare.bridge.family_table import split_tensor
from ckptcheck.compare.bridge.mbridge_check import (
    MbridgeMapping,
    build_family_table,
    find_disagreements,
    find_mbridge_python,
    query_mbridge,
)
from ckptcheck.compare.bridge.model_dimensions import ModelDimensions
from ckptcheck.compare.bridge.tensor_layout import TensorLayout
from ckptcheck.errors import CkptcheckError

pytestmark = pytest.mark.engine
SIZES = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 64, "rms_norm_eps": 1e-6, "tie_word_embeddings": False,
}  # fmt: skip
MOE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
LATENT = {
    "q_lora_rank": 16, "kv_lora_rank": 8, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 8, "n_routed_experts": 4,
    "n_shared_experts": 1, "first_k_dense_replace": 1, "num_nextn_predict_layers": 1, "num_hidden_layers": 61, "n_group": 2,
    "topk_group": 1, "routed_scaling_factor": 1.0, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "norm_topk_prob": True,
}  # fmt: skip
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen2": {},
    "qwen3": {},
    "qwen3_moe": MOE,
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "deepseek_v3": LATENT,
    "glm4_moe": {
        "n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2, "moe_intermediate_size": 16,
        "first_k_dense_replace": 1, "num_nextn_predict_layers": 1, "use_qk_norm": True, "attention_bias": True,
        "partial_rotary_factor": 0.5, "routed_scaling_factor": 1.0, "n_group": 1, "topk_group": 1,
    },
}  # fmt: skip
"""gpt-oss is not among mbridge 0.15.1's families."""
UNKNOWN = {
    "value_head", "linear_proj.bias", "linear_fc1.bias", "linear_fc2.bias", "q_layernorm.weight", "k_layernorm.weight",
    "linear_qkv.bias", "linear_qkv.weight", "kv_layernorm.weight", "linear_q_proj.weight", ".mlp.linear_fc",
}  # fmt: skip
"""What a table knows beyond mbridge: biases of Llama's cousins, a critic's head, dense layers among layers of experts."""


@pytest.fixture(scope="session")
def python() -> str:
    """An interpreter with the real mbridge: the one that is found."""
    if (found := find_mbridge_python()) is None:
        pytest.skip("the megatron environment, which has mbridge, is not built (make engines)")
    return found


def hf_config_from_args(family: str) -> dict[str, Any]:
    return {"model_type": family, "architectures": ["X"], **SIZES, **CONFIGS[family]}


def tensors_of(family: str) -> dict[str, TensorLayout]:
    """A tensor for every name of a family's table, with the rows that its layout wants."""
    layers = hf_config_from_args(family)["num_hidden_layers"]
    found = {}
    for template in TABLES[family].megatron:
        of_prediction = any(part in template for part in ("enorm", "hnorm", "eh_proj")) or "layers.{}.final" in template
        for layer in (layers,) if of_prediction else (1, 2, layers) if "deepseek" in family else (1, 2):
            for expert in (0, 3):
                name = template.replace("{}", str(layer), 1).replace("{}", str(expert), 1)
                rows = 64 if "linear_qkv" in name else 32
                shape = (rows,) if name.endswith("bias") or "norm" in name else (rows, 32)
                found[name] = TensorLayout.contiguous("BF16", 2, shape, "x", 0)
    return found


class Opinions(dict[str, MbridgeMapping]):
    """What mbridge says of a family, asked once."""

    def __init__(self, python: str, folder: Path) -> None:
        super().__init__()
        self.python, self.folder = python, folder

    def __missing__(self, family: str) -> MbridgeMapping:
        (self.folder / family).mkdir()
        (self.folder / family / "config.json").write_text(json.dumps(hf_config_from_args(family)))
        layers = hf_config_from_args(family)["num_hidden_layers"]
        self[family] = query_mbridge(self.python, self.folder / family, tensors_of(family), layers)
        return self[family]


@pytest.fixture(scope="session")
def opinions(python: str, tmp_path_factory: pytest.TempPathFactory) -> Opinions:
    return Opinions(python, tmp_path_factory.mktemp("opinions"))


@pytest.mark.parametrize("family", CONFIGS)
def test_mbridge_agrees(family: str, opinions: Opinions) -> None:
    geometry = ModelDimensions.from_config(Config("config.json", hf_config_from_args(family), readable=True))
    found, unknown = find_disagreements(opinions[family], TABLES[family], tensors_of(family), geometry)
    assert found == {}
    assert [name for name in unknown if not any(part in name for part in UNKNOWN)] == []
    assert len(opinions[family].rows) >= 8


@pytest.mark.parametrize("family", CONFIGS)
def test_its_mapping_as_a_table_is_the_built_in_one(family: str, opinions: Opinions) -> None:
    geometry = ModelDimensions.from_config(Config("config.json", hf_config_from_args(family), readable=True))
    table = build_family_table(opinions[family])
    assert len(table.megatron) >= 8
    for name, area in tensors_of(family).items():
        theirs = split_tensor(table.megatron, name, area, geometry)
        if theirs is not None:
            ours = split_tensor(TABLES[family].megatron, name, area, geometry)
            assert ours is not None
            assert theirs.keys() == ours.keys()


def test_a_table_that_is_wrong_is_contradicted(opinions: Opinions) -> None:
    table = TABLES["qwen3_moe"]
    entries = dict(table.megatron)
    name = "decoder.layers.{}.mlp.experts.local_experts.{}.linear_fc1.weight"
    entries[name] = replace(entries[name], targets=entries[name].targets[::-1])
    norm = "decoder.layers.{}.input_layernorm.weight"
    entries[norm] = replace(entries[norm], targets=("model.layers.{0}.post_attention_layernorm.weight",))
    geometry = ModelDimensions.from_config(Config("config.json", hf_config_from_args("qwen3_moe"), readable=True))
    found, _ = find_disagreements(
        opinions["qwen3_moe"], replace(table, megatron=entries), tensors_of("qwen3_moe"), geometry
    )
    assert found["decoder.layers.1.mlp.experts.local_experts.0.linear_fc1.weight"] == (
        "for model.layers.1.mlp.experts.0.gate_proj.weight the built-in table takes rows ((16, 32),), mbridge ((0, 16),)"
    )
    assert "decoder.layers.2.input_layernorm.weight" in found


def test_no_answer_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(CkptcheckError, match="mbridge gave no answer"):
        query_mbridge("/bin/false", tmp_path, {}, None)
