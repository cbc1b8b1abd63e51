"""Which modules a consumer builds out of a checkpoint's, as learned from it."""

from __future__ import annotations

import json

import pytest

from ckptcheck.consumers import CONSUMERS, evaluate_consumer
from tests.paths import ROOT

ARCHITECTURES = json.loads((ROOT / "ckptcheck" / "checkpoint" / "architectures.json").read_text())["architectures"]
FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
PACKED = {
    "quant_method": "compressed-tensors",
    "format": "pack-quantized",
    "config_groups": {
        "group_0": {"targets": ["Linear"], "weights": {"num_bits": 4, "group_size": 32, "symmetric": True}}
    },
}
MAJOR = (
    "LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM", "Qwen2MoeForCausalLM",
    "Qwen3MoeForCausalLM", "MixtralForCausalLM", "DeepseekV2ForCausalLM", "DeepseekV3ForCausalLM", "Gemma2ForCausalLM",
    "Gemma3ForCausalLM", "Glm4MoeForCausalLM", "GptOssForCausalLM", "Phi3ForCausalLM", "OlmoeForCausalLM",
    "MiniMaxM2ForCausalLM", "Qwen3NextForCausalLM",
)  # fmt: skip


def layer(*parts: str, number: int = 1) -> list[str]:
    return [f"model.layers.{number}.{part}" for part in parts]


@pytest.mark.parametrize("consumer", ["vllm", "sglang", "transformers"])
def test_the_major_architectures_are_learned(consumer: str) -> None:
    structures = CONSUMERS[consumer].structures
    assert [name for name in MAJOR if structures.load_structure(name).is_guess] == []


@pytest.mark.parametrize("architecture", MAJOR)
@pytest.mark.parametrize("consumer", ["vllm", "sglang"])
def test_every_linear_of_a_checkpoint_goes_somewhere(consumer: str, architecture: str) -> None:
    """All modules that transformers writes for an architecture, norms and heads of tied models aside, are of one."""
    names = [name.replace("{}", "1") for name in ARCHITECTURES[architecture]["modules"]]
    names = [name for name in names if name.endswith(("_proj", ".gate", ".w1", ".w2", ".w3")) and "mtp" not in name]
    if architecture in ("MixtralForCausalLM", "MiniMaxM2ForCausalLM"):
        names = [name for name in names if ".mlp." not in name]  # so transformers calls them, in memory only
    if consumer == "sglang" and architecture in ("Qwen2MoeForCausalLM", "Qwen3MoeForCausalLM", "Qwen3NextForCausalLM"):
        names = [name for name in names if ".mlp." not in name or "expert" in name]  # it builds no dense layers
    built = {
        part
        for module in CONSUMERS[consumer].structures.build_modules(architecture, "fp8", names)
        for part in module.sources
    }
    assert not {*names} - built


def test_shards_and_experts_are_one_module() -> None:
    names = layer("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.gate", "mlp.experts.0.gate_proj")
    names += layer("mlp.experts.7.down_proj", "mlp.experts.7.up_proj")
    for consumer, expert, fused in (
        ("vllm", "RoutedExperts", "QKVParallelLinear"),
        ("sglang", "FusedMoE", "QKVParallelLinear"),
    ):
        found = {
            module.name: module
            for module in CONSUMERS[consumer].structures.build_modules("Qwen3MoeForCausalLM", "fp8", names)
        }
        assert found.keys() == {*layer("self_attn.qkv_proj", "mlp.gate", "mlp.experts")}
        assert found["model.layers.1.self_attn.qkv_proj"].class_name == fused
        assert len(found["model.layers.1.self_attn.qkv_proj"].sources) == 3
        assert found["model.layers.1.mlp.experts"].class_name == expert
        assert len(found["model.layers.1.mlp.experts"].sources) == 3
        assert not any(module.is_guess for module in found.values())


def test_a_router_is_what_each_engine_makes_of_it() -> None:
    router = layer("mlp.gate")
    for architecture, vllm, sglang, transformers in (
        ("Qwen3MoeForCausalLM", True, False, False),  # vLLM builds it with the config: an ignore list has to name it
        ("DeepseekV3ForCausalLM", False, False, False),  # sound without a list, as DeepSeek's own checkpoints are
    ):
        for consumer, quantized in (("vllm", vllm), ("sglang", sglang), ("transformers", transformers)):
            for config in (FP8, PACKED):
                verdict = evaluate_consumer(consumer, architecture, router, config).decisions[router[0]][1]
                assert verdict.quantized is quantized, (consumer, architecture, config["quant_method"])


def test_sglang_knows_no_shards_of_models_that_do_not_say() -> None:
    """Llama's class in SGLang has no packed_modules_mapping: an ignore list of shards is overlooked."""
    names = layer("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
    ignored = {**PACKED, "ignore": names}
    assert evaluate_consumer("vllm", "LlamaForCausalLM", names, ignored).decisions[names[0]][1].quantized is False
    assert evaluate_consumer("sglang", "LlamaForCausalLM", names, ignored).decisions[names[0]][1].quantized is True
    assert evaluate_consumer("sglang", "Qwen3MoeForCausalLM", names, ignored).decisions[names[0]][1].quantized is False


def test_mixtral_is_called_otherwise_in_sglang() -> None:
    """It leaves `model.` out of the names that it asks with, so an entry with it matches nothing."""
    names = layer("self_attn.o_proj")
    for entry, quantized in (("model.layers.1.self_attn.o_proj", True), ("layers.1.self_attn.o_proj", False)):
        judged = evaluate_consumer("sglang", "MixtralForCausalLM", names, {**PACKED, "ignore": [entry]})
        assert judged.decisions[names[0]][1].quantized is quantized


def test_an_unknown_architecture_is_guessed_and_says_so() -> None:
    names = layer("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.down_proj")
    for consumer in CONSUMERS:
        judged = evaluate_consumer(consumer, "NobodyKnowsForCausalLM", names, PACKED)
        assert judged.is_guess is (consumer != "slime")
        assert {verdict.quantized for _, verdict in judged.decisions.values()} == {True}


def test_an_unknown_method_is_a_reason_never_a_verdict() -> None:
    for consumer in CONSUMERS:
        judged = evaluate_consumer(consumer, "LlamaForCausalLM", layer("mlp.down_proj"), {"quant_method": "spqr"})
        assert judged.reason
        assert not judged.decisions


def test_a_refused_config_is_an_error() -> None:
    config = {"quant_method": "gptq", "bits": 3, "group_size": 128, "desc_act": False, "sym": True}
    for consumer in ("vllm", "sglang"):
        judged = evaluate_consumer(consumer, "LlamaForCausalLM", layer("mlp.down_proj"), config)
        assert judged.error == "bits=3 with sym=true is not supported"


def test_entries_that_match_nothing_are_dead() -> None:
    names = layer("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.down_proj")
    config = {**PACKED, "ignore": ["re:.*down_proj$", "model.layers.1.mlp.down_proj.linear", "lm_head"]}
    judged = evaluate_consumer("vllm", "LlamaForCausalLM", [*names, "lm_head"], config)
    assert judged.unused_entries("ignore") == ["model.layers.1.mlp.down_proj.linear"]
    assert judged.unused_entries("targets") == []


def test_an_entry_for_what_is_never_quantized_is_not_dead() -> None:
    names = [*layer("self_attn.o_proj", "mlp.experts.0.down_proj", "mlp.gate"), "lm_head"]
    listed = ["lm_head", "model.layers.1.mlp.experts.0", "model.layers.1.mlp.gate", "model.layers.1.mlp.gates"]
    judged = evaluate_consumer("vllm", "DeepseekV3ForCausalLM", names, {**FP8, "modules_to_not_convert": listed})
    assert judged.unused_entries("modules_to_not_convert") == ["model.layers.1.mlp.gates"]


def test_where_a_loader_of_sglang_raises() -> None:
    """Llama's drops all that it has no place for, Qwen3's raises at parts of fused modules, Gemma's at everything."""
    names = layer("mlp.down_proj", "mlp.up_proj", "self_attn.o_proj", "self_attn.q_proj")
    for architecture, raises in (
        ("LlamaForCausalLM", []),
        ("Qwen3ForCausalLM", layer("mlp.up_proj", "self_attn.q_proj")),
        ("Gemma2ForCausalLM", names),
        ("OurForCausalLM", []),
    ):
        built = CONSUMERS["sglang"].structures.build_modules(architecture, "compressed-tensors", names)
        assert sorted(part for module in built if module.rejects_unknown_tensors for part in module.sources) == raises
    assert not any(
        module.rejects_unknown_tensors
        for module in CONSUMERS["vllm"].structures.build_modules("Qwen3ForCausalLM", "compressed-tensors", names)
    )
