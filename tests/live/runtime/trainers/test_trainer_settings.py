"""What Megatron's model is built from, and what is refused before anything starts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import live
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.checkpoint.config import Config
from ckptcheck.checkpoint.megatron.megatron import Megatron
from ckptcheck.checkpoint.open import open_checkpoint, open_target
from ckptcheck.errors import CkptcheckError
from ckptcheck.live.runtime.process.exchange import TensorExchange
from ckptcheck.live.runtime.trainers.layout import ParallelLayout
from ckptcheck.live.runtime.trainers.megatron_settings import megatron_settings, megatron_table
from ckptcheck.live.runtime.trainers.megatron_source import hf_config_from_args, write_hf_checkpoint
from ckptcheck.live.runtime.trainers.spawn import tensor_files
from ckptcheck.live.runtime.trainers.transformers import start_transformers
from ckptcheck.live.runtime.worker.ckptcheck_worker.buckets import split_into_buckets
from tests.paths import ROOT

FIXTURES = ROOT / "fixtures" / "megatron"


def config(name: str, **changes: Any) -> Config:
    value = {**live.BASE, **live.MODELS[name], **changes}
    value.setdefault("architectures", [f"{live.CLASSES.get(value['model_type'])}ForCausalLM"])
    return Config("config.json", value, readable=True)


def settings(name: str, layout: ParallelLayout | None = None, dtype: str = "float32", **changes: Any) -> dict[str, Any]:
    return megatron_settings(config(name, **changes), layout or ParallelLayout(), dtype, "it")


def test_a_layout_counts_its_ranks_and_says_its_name() -> None:
    sizes = [
        ParallelLayout(),
        ParallelLayout(tp=3),
        ParallelLayout(2, 2),
        ParallelLayout(2, 2, 2),
        ParallelLayout(2, 1, 4),
    ]
    assert [layout.world_size for layout in sizes] == [1, 3, 4, 4, 4]
    assert [str(layout) for layout in sizes] == ["", "TP3", "TP2·PP2", "TP2·PP2·EP2", "TP2·EP4"]
    assert [layout.expert_tp for layout in sizes] == [1, 3, 2, 1, 1]


@pytest.mark.parametrize(
    ("sizes", "most", "buckets"),
    [
        ([], 4, []),
        ([4], 4, [(0, 1)]),
        ([5], 4, [(0, 1)]),
        ([2, 2, 1], 4, [(0, 2), (2, 3)]),
        ([1, 9, 1, 1], 4, [(0, 1), (1, 2), (2, 4)]),
        ([0, 0, 3], 1, [(0, 2), (2, 3)]),
    ],
)
def test_buckets_hold_as_much_as_fits(sizes: list[int], most: int, buckets: list[tuple[int, int]]) -> None:
    assert split_into_buckets(sizes, most) == [range(*bucket) for bucket in buckets]


def test_settings_say_the_model_in_megatrons_words() -> None:
    found = settings("qwen3-moe", ParallelLayout(tp=2, ep=2), "bfloat16", mlp_only_layers=[0])
    assert found["config"] == {
        "num_layers": 2, "hidden_size": 64, "ffn_hidden_size": 96, "num_attention_heads": 4, "num_query_groups": 2,
        "kv_channels": 32, "layernorm_epsilon": 1e-6, "qk_layernorm": True, "add_qkv_bias": False, "num_moe_experts": 4,
        "moe_router_topk": 2, "moe_ffn_hidden_size": 48, "moe_layer_freq": [0, 1],
    }  # fmt: skip
    assert found["layout"] == {"tp": 2, "pp": 1, "ep": 2, "etp": 1, "world": 2}
    assert settings("llama-nine", ParallelLayout(tp=3))["padded_vocabulary"] == 513
    assert settings("qwen2")["config"]["add_qkv_bias"] is True
    scaled = {"rope_type": "llama3", "rope_theta": 5e5, "factor": 32.0}
    found = settings("llama", rope_parameters=scaled)
    assert (found["rotary_base"], found["rope_scaling"]) == (5e5, 32.0)
    assert settings("llama", rope_parameters=None, rope_theta=7.0)["rotary_base"] == 7.0


def test_the_table_names_layouts_that_the_far_side_has() -> None:
    far = (ROOT / "ckptcheck/live/runtime/worker/ckptcheck_worker/megatron_layout.py").read_text(encoding="utf-8")
    for name in live.MODELS:
        for entry in megatron_table(config(name)).values():
            assert f'"{entry["layout"]}"' in far


@pytest.mark.parametrize(
    ("name", "layout", "changes", "message"),
    [
        ("llama", ParallelLayout(tp=4), {}, "it has 2 groups of queries (num_key_value_heads), which TP4 cannot share evenly"),
        ("llama", ParallelLayout(pp=3), {}, "it has 2 layers, which PP3 cannot share evenly"),
        ("llama", ParallelLayout(ep=2), {}, "it has no experts that EP2 could share"),
        ("qwen3-moe", ParallelLayout(ep=3), {}, "it has 4 experts, which EP3 cannot share evenly"),
        ("qwen3-moe", None, {"norm_topk_prob": False}, "does not normalise the weights of the chosen experts"),
        ("qwen3-moe", None, {"num_experts_per_tok": None}, "does not say how many experts there are"),
        ("llama", None, {"mlp_bias": True}, "it has biases in the feed-forward layers"),
        ("llama", None, {"attention_bias": True}, "its attention has a bias on the output"),
        ("llama", None, {"hidden_act": "gelu"}, "its activation is gelu"),
        ("llama", None, {"hidden_size": None}, "config.json of it does not say what Megatron calls hidden_size"),
        ("qwen2", None, {"use_sliding_window": True}, "looks through a sliding window"),
        ("llama", None, {"rope_parameters": {"rope_type": "yarn"}}, "of the kind yarn are not Megatron's"),
        (
            "llama", None, {"rope_parameters": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 2.0}},
            "has the constants of Llama 3's rotary embedding built in",
        ),
        ("llama", None, {"model_type": "gemma3", "architectures": ["Gemma3ForCausalLM"]}, "a model of the type gemma3"),
        ("llama", None, {"architectures": ["LlamaForTokenClassification"]}, "it is a critic or another scoring model"),
        ("llama", None, {"architectures": ["LlamaModel"]}, "has no config.json of a language model"),
    ],
)  # fmt: skip
def test_a_model_that_would_not_be_the_same_is_refused(
    name: str, layout: ParallelLayout | None, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(CkptcheckError) as caught:
        settings(name, layout, **changes)
    assert message in caught.value.message


def test_other_dtypes_and_other_sources_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CkptcheckError, match="a trainer holds float32 or bfloat16, not float16"):
        settings("llama", dtype="float16")
    with pytest.raises(CkptcheckError, match=r"has no config\.json of a language model"):
        megatron_settings(None, ParallelLayout(), "float32", "it")
    live.write("llama", tmp_path)
    written = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    for changes, message in (
        ({"quantization_config": {"quant_method": "fp8"}}, "is quantized, and a trainer holds plain weights"),
        ({"architectures": ["LlamaForSequenceClassification"]}, "no engine serves one"),
    ):
        (tmp_path / "config.json").write_text(json.dumps({**written, **changes}), encoding="utf-8")
        with TensorExchange("file") as exchange, pytest.raises(CkptcheckError, match=message):
            start_transformers(open_checkpoint(str(tmp_path)), exchange)


def test_tensors_that_no_model_loads_are_left_out(tmp_path: Path) -> None:
    held = load_file(live.write("qwen3-tied", tmp_path) / "model.safetensors")
    more = {"lm_head.weight": held["model.embed_tokens.weight"], "model.rotary_emb.inv_freq": np.ones(4, np.float32)}
    save_file(held | more, tmp_path / "model.safetensors", {"format": "pt"})
    assert tensor_files(open_checkpoint(str(tmp_path))).keys() == held.keys()
    live.write("qwen3", tmp_path / "untied")
    assert "lm_head.weight" in tensor_files(open_checkpoint(str(tmp_path / "untied")))
    (tmp_path / "model.safetensors").write_bytes(b"broken")
    with pytest.raises(CkptcheckError, match=r"model\.safetensors cannot be read"):
        tensor_files(open_checkpoint(str(tmp_path)))


def run_of(name: str) -> Megatron:
    run = open_target(str(FIXTURES / name))
    assert isinstance(run, Megatron)
    return run


def test_runs_of_any_layout_become_the_same_checkpoint(tmp_path: Path) -> None:
    found: dict[str, Checkpoint] = {}
    for name in ("dense", "tp2-pp2", "per-layer", "legacy-tp2", "moe-ep2"):
        found[name] = write_hf_checkpoint(run_of(name), tmp_path / name)
    assert found["moe-ep2"].config is not None
    assert found["moe-ep2"].config.architecture == "Qwen3MoeForCausalLM"
    dense = load_file(tmp_path / "dense" / "model-00001-of-00001.safetensors")
    assert dense["model.embed_tokens.weight"].shape[0] == 60  # without the rows that pad the vocabulary
    for name in ("per-layer", "legacy-tp2"):
        other = load_file(tmp_path / name / "model-00001-of-00001.safetensors")
        assert other.keys() == dense.keys()
        assert all(np.array_equal(other[tensor], dense[tensor]) for tensor in dense)


@pytest.mark.parametrize("name", ["critic", "legacy-critic-pp2"])
def test_a_critic_is_refused_as_a_run_as_well(name: str, tmp_path: Path) -> None:
    with pytest.raises(CkptcheckError, match="is a critic, and no engine serves one"):
        write_hf_checkpoint(run_of(name), tmp_path)


def test_a_run_without_arguments_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CkptcheckError, match="do not say num_layers, so no model can be built from it"):
        write_hf_checkpoint(run_of("plain-dcp"), tmp_path)


def test_the_family_is_told_by_what_the_layers_have() -> None:
    args: dict[str, Any] = {"num_layers": 2, "hidden_size": 8, "num_attention_heads": 4, "ffn_hidden_size": 16}
    assert hf_config_from_args(args, "it")["model_type"] == "llama"
    assert hf_config_from_args(args, "it")["num_key_value_heads"] == 4
    assert hf_config_from_args({**args, "add_qkv_bias": True}, "it")["model_type"] == "qwen2"
    assert hf_config_from_args({**args, "qk_layernorm": True}, "it")["model_type"] == "qwen3"
    sparse = hf_config_from_args({**args, "qk_layernorm": True, "num_experts": 4, "moe_layer_freq": [0, 1]}, "it")
    assert (sparse["model_type"], sparse["mlp_only_layers"]) == ("qwen3_moe", [0])
    for wrong in ({"swiglu": False}, {"normalization": "LayerNorm"}, {"num_experts": 4}):
        with pytest.raises(CkptcheckError, match="it"):
            hf_config_from_args({**args, **wrong}, "it")
