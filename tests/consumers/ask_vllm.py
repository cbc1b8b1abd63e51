"""Runs inside vLLM's interpreter: asks its real quantization configs about modules. JSON questions in, answers out.

Only what builds a kernel is replaced: which modules are quantized is decided before that.
"""

from __future__ import annotations

import json
import os
import re
import sys
from typing import Any

os.environ.update(VLLM_LOGGING_LEVEL="ERROR", HF_HUB_OFFLINE="1", OMP_NUM_THREADS="1")


class Quantized:
    """Stands for any method that would make packed weights."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.input_dtype = self.marlin_input_dtype = None


def prepare() -> Any:
    """Replace what needs a kernel, and return the layers' classes by name."""
    from vllm.model_executor.layers import fused_moe, linear, vocab_parallel_embedding
    from vllm.model_executor.layers.fused_moe.router import gate_linear
    from vllm.model_executor.layers.quantization import auto_awq, auto_gptq, fp8, modelopt, mxfp4
    from vllm.model_executor.layers.quantization.compressed_tensors import compressed_tensors as ct
    from vllm.model_executor.layers.quantization.compressed_tensors.compressed_tensors_moe import (
        compressed_tensors_moe as ct_moe,
    )
    from vllm.model_executor.layers.quantization.compressed_tensors.compressed_tensors_moe import (
        compressed_tensors_moe_wna16 as ct_wna16,
    )
    from vllm.model_executor.layers.quantization.quark import quark

    class Plain(linear.UnquantizedLinearMethod):  # type: ignore[misc]
        def __init__(self, *_: Any, **__: Any) -> None:
            pass

    def stub(module: Any, *names: str, by: Any = Quantized) -> None:
        for name in names:
            assert hasattr(module, name), f"{module.__name__} has no {name}"
            setattr(module, name, by)

    stub(ct.CompressedTensorsConfig, "_get_scheme_from_parts", by=lambda *_, **__: Scheme())
    stub(ct, "CompressedTensorsLinearMethod", "CompressedTensorsEmbeddingWNA16Int")
    stub(ct, "get_linear_transform_schemes", by=lambda *_: ({}, {}))
    stub(ct_moe, "UnquantizedFusedMoEMethod", by=Plain)
    stub(ct_wna16, "CompressedTensorsWNA16MoEMethod")
    stub(fp8, "Fp8LinearMethod", "Fp8MoEMethod")
    stub(fp8, "UnquantizedFusedMoEMethod", by=Plain)
    stub(auto_gptq, "AutoGPTQLinearMethod", "AutoGPTQMoEMethod")
    stub(auto_gptq, "UnquantizedFusedMoEMethod", by=Plain)
    stub(auto_awq, "AutoAWQMarlinLinearMethod", "AutoAWQLinearMethod", "AutoAWQMoEMethod")
    stub(auto_awq, "UnquantizedFusedMoEMethod", by=Plain)
    for module in (auto_gptq, auto_awq):
        stub(module, "check_moe_marlin_supports_layer", by=lambda *_, **__: True)
    stub(
        modelopt,
        "build_linear_method",
        "ModelOptFp8MoEMethod",
        "ModelOptNvFp4FusedMoE",
        "ModelOptMxFp8FusedMoE",
        "Fp8MoEMethod",
    )
    for name in ("ModelOptFp8Config", "ModelOptNvFp4Config", "ModelOptMxFp8Config"):
        getattr(modelopt, name).FusedMoEMethodCls = Quantized
    stub(mxfp4, "GptOssMxfp4MoEMethod", "Mxfp4MoEMethod")
    stub(quark, "UnquantizedFusedMoEMethod", by=Plain)
    stub(quark.QuarkConfig, "get_scheme_cls", by=lambda *_: (None, None, None))
    stub(quark.QuarkConfig, "_find_matched_config", by=lambda *_: {})
    stub(quark.QuarkConfig, "init_scheme", by=lambda *_, **__: None)
    stub(quark, "QuarkLinearMethod")
    moe = type("QuarkMoE", (quark.QuarkMoEMethod,), {})
    stub(quark.QuarkMoEMethod, "get_moe_method_target", by=staticmethod(lambda *_: (None, None, moe)))
    stub(quark.QuarkMoEMethod, "get_moe_method", by=staticmethod(lambda *_, **__: Quantized()))
    kinds = {**vars(linear), **vars(vocab_parallel_embedding), **vars(gate_linear), **vars(fused_moe)}
    return kinds, Plain


class Scheme:
    """Stands for a scheme of compressed-tensors."""

    def get_min_capability(self) -> int:
        return 0


def layer(kinds: dict[str, Any], asked: dict[str, Any]) -> Any:
    """Make a layer of the real class without its weights."""
    from torch import nn

    made = kinds[asked["kind"]].__new__(kinds[asked["kind"]])
    nn.Module.__init__(made)
    made.__dict__["moe_config"] = None
    for name, shard in zip(
        ("gate", "up", "down"), asked.get("shards") or ("gate_proj", "up_proj", "down_proj"), strict=True
    ):
        made.__dict__[f"ckpt_{name}_proj_name"] = shard
    return made


def answer(question: dict[str, Any], kinds: dict[str, Any]) -> Any:
    """Return what vLLM says of each module: true, false, or the error; or the error it has with the whole config."""
    from vllm.model_executor.layers.linear import UnquantizedLinearMethod
    from vllm.model_executor.layers.quantization import auto_awq, auto_gptq, get_quantization_config
    from vllm.model_executor.layers.vocab_parallel_embedding import UnquantizedEmbeddingMethod
    from vllm.model_executor.models.utils import WeightsMapper

    stored = {f"{name}.weight": {"dtype": "BF16"} for name in question["plain"]}
    stored |= {f"{name}.qweight": {"dtype": "I32"} for name in question["packed"]}
    for module in (auto_awq, auto_gptq):
        module.get_safetensors_params_metadata = lambda *_, **__: stored
    method = {"modelopt": "modelopt"}.get(question["method"], question["method"])
    settings = question["config"]
    try:
        if method == "modelopt":
            algorithm = str((settings.get("quantization") or settings).get("quant_algo")).upper()
            method = (
                "modelopt_mixed"
                if algorithm == "MIXED_PRECISION"
                else "modelopt_fp4"
                if "FP4" in algorithm
                else "modelopt"
            )
        config = get_quantization_config(method).from_config(settings)
        config.maybe_update_config("model")
        rules = question["rename"]
        mapper = WeightsMapper(
            orig_to_new_regex={re.compile(old): new for old, new in rules.get("regex", [])},
            orig_to_new_substr=dict(rules.get("substr", [])),
            orig_to_new_prefix=dict(rules.get("prefix", [])),
            orig_to_new_suffix=dict(rules.get("suffix", [])),
        )
        if rules:
            config.apply_vllm_mapper(mapper)
    except Exception as error:
        return {"refused": f"{type(error).__name__}: {error}"[:300]}
    config.packed_modules_mapping = question["fused"]
    answers: list[Any] = []
    for asked in question["modules"]:
        try:
            made = config.get_quant_method(layer(kinds, asked), asked["name"])
            answers.append(not (made is None or isinstance(made, UnquantizedLinearMethod | UnquantizedEmbeddingMethod)))
        except Exception as error:
            answers.append(f"{type(error).__name__}: {error}"[:300])
    return answers


def main() -> None:
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    kinds, _ = prepare()
    with open(sys.argv[1]) as file:
        answers = [answer(question, kinds) for question in json.load(file)]
    json.dump(answers, out)
    out.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
