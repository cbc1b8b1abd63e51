"""An SGLang plugin that computes INT8 and FP8 linear layers (compressed-tensors W8A8) and FP8 experts on a CPU.

SGLang 0.5.23 multiplies them with CUDA kernels only, and transposes the weights for those into a new parameter without a
loader, so that stock SGLang accepts such a layer only once. This plugin keeps the layout of the checkpoint. It supports
scales by channel, as llm-compressor writes them, and does nothing on a machine with a GPU. SGLang has INT8 experts for
NPUs only.

Layout: a linear layer has ``weight`` int8 or float8 [out, in] and ``weight_scale`` float32 [out, 1]; experts have
``w13_weight`` [experts, 2 · middle, hidden], ``w13_weight_scale`` [experts, 2 · middle, 1], and ``w2`` alike.
"""

from __future__ import annotations

from typing import Any

from .sglang_experts import compute_experts, skip_runner

MAX_VALUE = {"int8": 127.0, "float8_e4m3fn": 448.0}
"""The largest value of a dtype."""


def register() -> None:
    """Replace the methods that need CUDA; sglang_int_kernels.py makes SGLang accept the schemes."""
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
        linear.process_weights_after_loading = _keep_layout
        linear.apply_weights = _apply_linear
    CompressedTensorsW8A8Fp8MoE.process_weights_after_loading = _keep_layout
    CompressedTensorsW8A8Fp8MoE.create_moe_runner = skip_runner
    CompressedTensorsW8A8Fp8MoE.apply_weights = _apply_experts


def _keep_layout(scheme: Any, layer: Any) -> None:
    strategy = getattr(scheme, "strategy", None) or scheme.weight_quant.strategy
    static = getattr(scheme, "is_static_input_scheme", False) or getattr(scheme, "static_input_scales", False)
    if str(getattr(strategy, "value", strategy)) != "channel" or static:
        raise NotImplementedError("on a CPU only scales by channel, and inputs rounded per token, are supported")


def _apply_linear(scheme: Any, layer: Any, x: Any, bias: Any) -> Any:
    import torch

    weight = layer.weight.data.float() * layer.weight_scale.data.float()
    return torch.nn.functional.linear(round_per_token(x, layer.weight.dtype), weight.to(x.dtype), bias)


def _apply_experts(scheme: Any, layer: Any, dispatch_output: Any) -> Any:
    def matrices(expert: int) -> tuple[Any, Any]:
        return (
            layer.w13_weight.data[expert].float() * layer.w13_weight_scale.data[expert].float(),
            layer.w2_weight.data[expert].float() * layer.w2_weight_scale.data[expert].float(),
        )

    return compute_experts(dispatch_output, matrices, lambda x: round_per_token(x, layer.w13_weight.dtype))


def round_per_token(x: Any, dtype: Any) -> Any:
    """Round inputs [tokens, in] to int8 or float8 with a scale for each token, and return them in their own dtype."""
    import torch

    largest = MAX_VALUE[str(dtype).rpartition(".")[2]]
    scale = x.float().abs().amax(-1, keepdim=True).clamp_min(1e-10) / largest
    codes = x.float() / scale
    codes = codes.round() if dtype == torch.int8 else codes.to(dtype).float()
    return (codes * scale).to(x.dtype)
