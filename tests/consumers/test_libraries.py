"""Tests the decisions for compressed-tensors and transformers against the libraries, those for slime against its source."""

from __future__ import annotations

import random
import re
from types import SimpleNamespace
from typing import Any

import pytest

from ckptcheck.consumers import CONSUMERS, evaluate_consumer
from ckptcheck.consumers.base import (
    EMBEDDING,
    LINEAR,
    OTHER,
    ConsumerError,
    ConsumerInput,
    ModelStructure,
    Module,
    UnknownBehavior,
)
from tests.conftest import needs
from tests.consumers.questions import DENSE, below, compressed_tensors, listed, modules

ROUTERS = ("gate", "shared_expert_gate")


def names_of(asked: list[dict[str, Any]]) -> list[str]:
    """The names that a checkpoint's modules have in transformers."""
    return sorted({name for module in asked for name in below(module["name"], DENSE)})


def verdicts(consumer: str, config: dict[str, Any], asked: list[Module], skipped: tuple[str, ...] = ()) -> Any:
    question = ConsumerInput(config["quant_method"], config, ModelStructure(default_skips=skipped))
    try:
        reader = CONSUMERS[consumer].read_config(question)
    except (ConsumerError, UnknownBehavior) as error:
        return type(error).__name__

    def judge(module: Module) -> Any:
        try:
            return reader.decide(module).quantized
        except (ConsumerError, UnknownBehavior) as error:
            return type(error).__name__

    return {module.name: judge(module) for module in asked}


def tree(names: list[str]) -> Any:
    """A real torch model with these modules: routers are no linears, as in transformers 5."""
    import torch
    from torch import nn

    class TopKRouter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.empty(8, 64))

    root = nn.Module()
    with torch.device("meta"):
        for name in names:
            *parents, last = name.split(".")
            node = root
            for part in parents:
                if part not in dict(node.named_children()):
                    node.add_module(part, nn.Module())
                node = getattr(node, part)
            made = TopKRouter() if last in ROUTERS else nn.Embedding(32, 64) if "embed" in last else nn.Linear(256, 64)
            node.add_module(last, made)
    return root


def test_compressed_tensors_quantizes_the_same_modules() -> None:
    needs("compressed_tensors", "torch")
    from compressed_tensors.quantization import QuantizationConfig, apply_quantization_config
    from pydantic import ValidationError

    agreed = 0
    for index in range(120):
        draw = random.Random(f"compressed-tensors-{index}")
        asked = modules(draw, "FusedMoE")
        names = names_of(asked)
        config = {"quant_method": "compressed-tensors", **compressed_tensors(draw, asked, DENSE)}
        kinds = [
            Module(name, "TopKRouter", OTHER)
            if name.rsplit(".", 1)[-1] in ROUTERS
            else Module(name, "Embedding", EMBEDDING)
            if "embed" in name
            else Module(name, "Linear", LINEAR)
            for name in names
        ]
        ours = verdicts("compressed-tensors", config, kinds)
        model = tree(names)
        error = None
        try:
            apply_quantization_config(model, QuantizationConfig.model_validate(config), show_progress=False)
        except (re.error, ValidationError, ValueError) as raised:
            error = raised
        if error is not None:
            undecided = ours in ("ConsumerError", "UnknownBehavior") or bool(
                {"ConsumerError", "UnknownBehavior"} & {*ours.values()}
            )
            assert undecided, (config, error, ours)
            continue
        assert isinstance(ours, dict), (config, ours)
        real = {name: hasattr(model.get_submodule(name), "quantization_scheme") for name in names}
        assert {name: real[name] for name in names if ours[name] != "UnknownBehavior"} == {
            name: value for name, value in ours.items() if value != "UnknownBehavior"
        }, config
        agreed += len(names)
    assert agreed > 1500


@pytest.mark.slow
def test_transformers_skips_the_same_modules() -> None:
    needs("transformers")
    from transformers.quantizers.quantizers_utils import should_convert_module

    agreed, refused, unknown = [0, 0], 0, 0
    for index in range(2000):
        draw = random.Random(f"transformers-{index}")
        asked = modules(draw, "FusedMoE")
        names = names_of(asked)
        entries = [str(each).removeprefix("re:") for each in listed(draw, asked, DENSE, broken=0.05)]
        config = {"quant_method": "fp8", "modules_to_not_convert": entries}
        ours = verdicts("transformers", config, [Module(name, "Linear", LINEAR) for name in names])
        for name in names:
            try:
                real: Any = should_convert_module(name, entries)
            except re.error:
                real = "ConsumerError"
            if ours[name] == "UnknownBehavior":
                unknown += 1
                continue
            assert ours[name] == real, (name, entries)
            refused += real == "ConsumerError"
            agreed[real is True] += 1
    assert min(agreed) > 3000
    assert refused > 100
    assert unknown < 0.03 * sum(agreed)


def test_transformers_replaces_the_same_modules_of_a_real_model() -> None:
    needs("transformers", "torch")
    import torch
    import zoo
    from transformers import FineGrainedFP8Config
    from transformers.integrations.finegrained_fp8 import FP8Experts, FP8Linear, replace_with_fp8_linear

    for architecture in ("LlamaForCausalLM", "Qwen3MoeForCausalLM", "DeepseekV3ForCausalLM"):
        model_class, config_class = zoo.resolve(architecture)
        with torch.device("meta"):
            model = model_class(config_class(**zoo.tiny_fields(config_class)))
        names = [
            name for name, module in model.named_modules() if "weight" in dict(module.named_parameters(recurse=False))
        ]
        names += [name for name, _ in model.named_modules() if name.endswith(".experts")]
        config = {"quant_method": "fp8", "modules_to_not_convert": ["lm_head", "model.layers.0", "down_proj"]}
        judged = evaluate_consumer("transformers", architecture, names, config)
        assert not judged.is_guess
        replace_with_fp8_linear(model, config["modules_to_not_convert"], FineGrainedFP8Config(), pre_quantized=True)
        replaced = {name for name, module in model.named_modules() if isinstance(module, FP8Linear | FP8Experts)}
        assert {name for name, (_, verdict) in judged.decisions.items() if verdict.quantized} == replaced


@pytest.mark.parametrize(
    "listed",
    [{}, {"modules_in_block_to_quantize": [["self_attn.q_proj", "up_proj"], ["down_proj"]]}],
    ids=["all", "listed"],
)
def test_optimum_replaces_the_same_modules_of_a_real_model(listed: dict[str, Any]) -> None:
    """transformers leaves it to optimum which modules of a GPTQ checkpoint are quantized."""
    needs("transformers", "torch", "optimum")
    import torch
    import zoo
    from optimum.gptq import GPTQQuantizer

    for architecture in (
        "LlamaForCausalLM",
        "Qwen3MoeForCausalLM",
        "DeepseekV3ForCausalLM",
        "GPT2LMHeadModel",
        "OPTForCausalLM",
        "GPTNeoXForCausalLM",
    ):
        model_class, config_class = zoo.resolve(architecture)
        with torch.device("meta"):
            model = model_class(config_class(**zoo.tiny_fields(config_class)))
        names = [
            name for name, module in model.named_modules() if "weight" in dict(module.named_parameters(recurse=False))
        ]
        names += [name for name, _ in model.named_modules() if name.endswith(".experts")]
        config = {"quant_method": "gptq", "bits": 4, **listed}
        judged = evaluate_consumer("transformers", architecture, names, config, packed=names, plain=())
        assert not judged.is_guess
        replaced: dict[str, object] = {}
        # its constructor, and the layers that compute, need GPTQModel
        quantizer = SimpleNamespace(
            block_name_to_quantize=None,
            modules_in_block_to_quantize=listed.get("modules_in_block_to_quantize"),
            select_quant_linear=lambda **_: None,
            _replace_by_quant_layers=lambda _, layers, found=replaced: found.update(layers),
        )
        GPTQQuantizer.convert_model(quantizer, model)
        assert {name for name, (_, verdict) in judged.decisions.items() if verdict.quantized} == {*replaced}, (
            architecture
        )
        assert replaced or listed


def slimes_own(name: str, rules: list[str]) -> bool:
    """What quantizer_compressed_tensors.py does with a parameter's name, in its own words."""
    return any(
        (r.startswith("re:") and re.match(r[3:], name) is not None) or name == r or name.startswith(r) for r in rules
    )


def test_slime_packs_the_same_parameters() -> None:
    agreed = [0, 0]
    for index in range(2000):
        draw = random.Random(f"slime-{index}")
        asked = modules(draw, "FusedMoE")
        names = [f"{name}.weight" for name in names_of(asked)]
        rules = [str(each) for each in listed(draw, asked, DENSE, broken=0.05)]
        group = {"targets": ["Linear"], "weights": {"group_size": 32, "symmetric": True}}
        config = {"quant_method": "compressed-tensors", "ignore": rules, "config_groups": {"group_0": group}}
        ours = verdicts("slime", config, [Module(name, "Parameter", OTHER) for name in names])
        for name in names:
            try:
                real: Any = not slimes_own(name, rules)
            except re.error:
                real = "ConsumerError"
            if ours[name] != "UnknownBehavior":
                assert ours[name] == real, (name, rules)
                agreed[real is True] += 1
    assert min(agreed) > 3000


@pytest.mark.parametrize(
    ("entry", "engine", "trainer"),
    [(r"re:.*mlp.gate$", False, True), (r"re:.*mlp\.gate\..*", True, False), ("model.layers.0.mlp.gate", False, False)],
)
def test_an_entry_for_the_router_does_not_mean_the_same_to_vllm_and_slime(
    entry: str, engine: bool, trainer: bool
) -> None:
    router = "model.layers.0.mlp.gate"
    weights = {"num_bits": 4, "group_size": 32, "symmetric": True}
    config = {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "ignore": [entry],
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}},
    }
    for consumer, expected in (("vllm", engine), ("slime", trainer), ("sglang", False)):
        judged = evaluate_consumer(consumer, "Qwen3MoeForCausalLM", [router], config)
        assert judged.decisions[router][1].quantized is expected, consumer  # SGLang builds this router without a config
