"""An SGLang plugin: linear layers in INT8 and FP8 (compressed-tensors W8A8, inputs rounded token by token) and experts in FP8.

SGLang 0.5.23 multiplies them with CUDA kernels only, and turns the weights over for those: into a new parameter without a
loader, so that stock SGLang cannot be sent such a layer twice. Here they stay as the checkpoint has them. Scales by channel, as
llm-compressor makes them; where there is a GPU nothing is done. Experts in INT8 SGLang has for NPUs alone.

Layout: a linear layer has ``weight`` int8 or float8 [out, in] and ``weight_scale`` float32 [out, 1]; experts have
``w13_weight`` [experts, 2 · middle, hidden], ``w13_weight_scale`` [experts, 2 · middle, 1], and ``w2`` alike.
"""

from __future__ import annotations

from typing import Any

from .sglang_experts import mixed, no_runner

MOST = {"int8": 127.0, "float8_e4m3fn": 448.0}
"""The largest number of a dtype."""


def register() -> None:
    """Replace what needs CUDA; see sglang_int.py, which says that schemes are supported."""
    import torch

    if torch.cuda.is_available():
        return
    from sglang.srt.layers.quantization.compressed_tensors.schemes.compressed_tensors_w8a8_fp8 import (
        CompressedTensorsW8A8Fp8,
    )
    from sglang.srt.layers.quantization.compressed_tensors.schemes.compressed_tensors_w8a8_fp8_moe import (
        CompressedTensorsW8A8Fp8MoE,
    )
    from sglang.srt.layers.quantization.compressed_tensors.schemes.compressed_tensors_w8a8_int8 import (
        CompressedTensorsW8A8Int8,
    )

    for linear in (CompressedTensorsW8A8Int8, CompressedTensorsW8A8Fp8):
        linear.process_weights_after_loading = _stay
        linear.apply_weights = _linear
    CompressedTensorsW8A8Fp8MoE.process_weights_after_loading = _stay
    CompressedTensorsW8A8Fp8MoE.create_moe_runner = no_runner
    CompressedTensorsW8A8Fp8MoE.apply_weights = _experts


def _stay(scheme: Any, layer: Any) -> None:
    strategy = getattr(scheme, "strategy", None) or scheme.weight_quant.strategy
    static = getattr(scheme, "is_static_input_scheme", False) or getattr(scheme, "static_input_scales", False)
    if str(getattr(strategy, "value", strategy)) != "channel" or static:
        raise NotImplementedError(
            "on a CPU there are only scales by channel, and inputs that are rounded token by token"
        )


def _linear(scheme: Any, layer: Any, x: Any, bias: Any) -> Any:
    import torch

    weight = layer.weight.data.float() * layer.weight_scale.data.float()
    return torch.nn.functional.linear(rounded(x, layer.weight.dtype), weight.to(x.dtype), bias)


def _experts(scheme: Any, layer: Any, dispatch_output: Any) -> Any:
    def matrices(expert: int) -> tuple[Any, Any]:
        return (
            layer.w13_weight.data[expert].float() * layer.w13_weight_scale.data[expert].float(),
            layer.w2_weight.data[expert].float() * layer.w2_weight_scale.data[expert].float(),
        )

    return mixed(dispatch_output, matrices, lambda x: rounded(x, layer.w13_weight.dtype))


def rounded(x: Any, dtype: Any) -> Any:
    """Return inputs [tokens, in] rounded to int8 or float8, with a scale for each token, and back again."""
    import torch

    most = MOST[str(dtype).rpartition(".")[2]]
    scale = x.float().abs().amax(-1, keepdim=True).clamp_min(1e-10) / most
    codes = x.float() / scale
    codes = codes.round() if dtype == torch.int8 else codes.to(dtype).float()
    return (codes * scale).to(x.dtype)
