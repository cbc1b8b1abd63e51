"""Runs inside SGLang's interpreter: asks its real quantization configs about modules, as on a CUDA device.

Only what builds a kernel or looks for a device is replaced: which modules are quantized is decided before that.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

os.environ.update(SGLANG_USE_CPU_ENGINE="1", HF_HUB_OFFLINE="1", OMP_NUM_THREADS="1")


class Quantized:
    """Stands for any method that would make packed weights."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def get_min_capability(self) -> int:
        return 0


def prepare() -> dict[str, Any]:
    """Replace what needs a kernel, and return the layers' classes by name."""
    from sglang.srt.layers import linear, vocab_parallel_embedding
    from sglang.srt.layers.moe.fused_moe_triton import FusedMoE
    from sglang.srt.layers.quantization import bitsandbytes, fp8, modelopt_quant, mxfp4, unquant
    from sglang.srt.layers.quantization.awq import awq
    from sglang.srt.layers.quantization.compressed_tensors import compressed_tensors as ct
    from sglang.srt.layers.quantization.gptq import gptq
    from sglang.srt.layers.quantization.quark import quark

    def stub(module: Any, *names: str, by: Any = Quantized) -> None:
        for name in names:
            assert hasattr(module, name), f"{module.__name__} has no {name}"
            setattr(module, name, by)

    class Plain(unquant.UnquantizedFusedMoEMethod):  # type: ignore[misc]
        def __init__(self, *_: Any, **__: Any) -> None:
            pass

    class Backend:
        def __getattr__(self, name: str) -> Any:
            return lambda: name == "is_auto"

    stub(ct, "CompressedTensorsLinearMethod", "CompressedTensorsFusedMoEMethod", "CompressedTensorsWNA16MoE")
    stub(ct.CompressedTensorsConfig, "_get_scheme_from_parts", by=lambda *_, **__: Quantized())
    stub(ct.CompressedTensorsConfig, "_check_scheme_supported", by=lambda *_, **__: True)
    stub(ct, "UnquantizedFusedMoEMethod", by=Plain)
    stub(ct, "get_moe_runner_backend", by=Backend)
    stub(ct, "get_platform", by=lambda: type("Platform", (), {"is_sm100": False}))
    stub(mxfp4, "Mxfp4MoEMethod")
    stub(fp8, "Fp8LinearMethod", "Fp8MoEMethod")
    stub(fp8, "UnquantizedFusedMoEMethod", by=Plain)
    stub(gptq, "GPTQMarlinLinearMethod", "GPTQMarlinMoEMethod")
    stub(awq, "AWQLinearMethod", "AWQMoEMethod", "AWQMarlinLinearScheme", "AWQMoEScheme")
    for name in ("check_marlin_supports_layer", "check_moe_marlin_supports_layer"):
        stub(awq, name, by=lambda *_, **__: True)
    stub(awq, "verify_marlin_supported", by=lambda *_, **__: None)
    stub(modelopt_quant, "ModelOptFp8LinearMethod", "ModelOptFp8MoEMethod", "ModelOptFp4LinearMethod")
    stub(modelopt_quant, "ModelOptNvFp4FusedMoEMethod", "ModelOptNvFp4A16LinearMethod", "ModelOptNvFp4EmbeddingMethod")
    for module in (modelopt_quant,):
        stub(module, "Fp8LinearMethod", "Fp8MoEMethod")
    stub(bitsandbytes, "BitsAndBytesLinearMethod", "BitsAndBytesMoEMethod")
    stub(quark, "QuarkLinearMethod", "QuarkFusedMoEMethod")
    for name in ("get_linear_scheme", "get_moe_scheme"):
        stub(quark.QuarkConfig, name, by=lambda *_, **__: Quantized())
    stub(quark.QuarkConfig, "_find_matched_config", by=lambda *_: {})
    stub(quark.QuarkConfig, "shared_expert_online_mxfp4_for_layer", by=lambda *_: False)
    return {**vars(linear), **vars(vocab_parallel_embedding), "FusedMoE": FusedMoE}


def layer(kinds: dict[str, Any], asked: dict[str, Any]) -> Any:
    """Make a layer of the real class without its weights."""
    from torch import nn

    made = kinds[asked["kind"]].__new__(kinds[asked["kind"]])
    nn.Module.__init__(made)
    made.__dict__.update(use_triton_kernels=False, use_flashinfer_trtllm_moe=False)
    return made


def answer(question: dict[str, Any], kinds: dict[str, Any]) -> Any:
    """Return what SGLang says of each module: true, false, or the error; or the error it has with the whole config."""
    from sglang.srt.layers.quantization import QUANTIZATION_METHODS
    from sglang.srt.layers.quantization.unquant import (
        UnquantizedEmbeddingMethod,
        UnquantizedFusedMoEMethod,
        UnquantizedLinearMethod,
    )
    from sglang.srt.models.utils import WeightsMapper

    plain = (UnquantizedEmbeddingMethod, UnquantizedFusedMoEMethod, UnquantizedLinearMethod)
    settings = {**question["config"], "packed_modules_mapping": question["fused"], "hf_config": None}
    method = {"gptq": "gptq_marlin", "awq": "awq_marlin"}.get(question["method"], question["method"])
    try:
        if method == "modelopt":
            algorithm = str((settings.get("quantization") or settings).get("quant_algo"))
            method = {"MIXED_PRECISION": "modelopt_mixed", "FP8": "modelopt_fp8"}.get(algorithm, "modelopt_fp4")
        config = QUANTIZATION_METHODS[method].from_config(settings)
        rules = question["rename"]
        if rules:
            kinds_of_rule = ("substr", "prefix", "suffix")
            config.apply_weight_name_mapper(
                WeightsMapper(**{f"orig_to_new_{kind}": dict(rules.get(kind, [])) for kind in kinds_of_rule})
            )
    except Exception as error:
        return {"refused": f"{type(error).__name__}: {error}"[:300]}
    answers: list[Any] = []
    for asked in question["modules"]:
        try:
            made = config.get_quant_method(layer(kinds, asked), asked["name"])
            answers.append(not (made is None or isinstance(made, plain)))
        except Exception as error:
            answers.append(f"{type(error).__name__}: {error}"[:300])
    return answers


def main() -> None:
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    kinds = prepare()
    with open(sys.argv[1]) as file:
        answers = [answer(question, kinds) for question in json.load(file)]
    json.dump(answers, out)
    out.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
