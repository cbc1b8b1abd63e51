"""An SGLang plugin that computes packed integers (compressed-tensors W4A16, W8A16) in linear layers and experts on a CPU.

SGLang 0.5.23 multiplies them with CUDA kernels only, and repacks the weights for those. This plugin keeps the layout of the
checkpoint and multiplies in torch. SGLang itself still decides which modules are quantized, which parameters they get, and how
the checkpoint's tensors reach them. It supports symmetric weights without act-order, and does nothing on a machine with
a GPU.

Layout (sglang/srt/layers/quantization/compressed_tensors/schemes): a linear layer has ``weight_packed`` int32
[out, in / 8] and ``weight_scale`` [out, groups]; experts have ``w13_weight_packed`` int32 [experts, in / 8, 2 · middle],
``w13_weight_scale`` [experts, groups, 2 · middle], and ``w2`` alike. The lowest bits of a word come first; the codes are
offset by half of their range.
"""

from __future__ import annotations

from typing import Any

from .sglang_experts import compute_experts, skip_runner


def register() -> None:
    """Replace the methods that need CUDA. SGLang logs an exception of this function and continues without the plugin."""
    import torch

    if torch.cuda.is_available():
        return
    from sglang.srt.layers.quantization.compressed_tensors.compressed_tensors import CompressedTensorsConfig
    from sglang.srt.layers.quantization.compressed_tensors.schemes.compressed_tensors_wNa16 import (
        CompressedTensorsWNA16,
    )
    from sglang.srt.layers.quantization.compressed_tensors.schemes.compressed_tensors_wNa16_moe import (
        CompressedTensorsWNA16MoE,
    )

    dtypes = [torch.float16, torch.bfloat16, torch.float32]
    CompressedTensorsConfig.get_supported_act_dtypes = classmethod(lambda cls: dtypes)
    CompressedTensorsConfig._check_scheme_supported = _is_supported
    CompressedTensorsWNA16.process_weights_after_loading = _keep_layout
    CompressedTensorsWNA16.apply_weights = _apply_linear
    CompressedTensorsWNA16MoE.process_weights_after_loading = _keep_expert_layout
    CompressedTensorsWNA16MoE.restore_weights_before_loading = _keep_expert_layout
    CompressedTensorsWNA16MoE.create_moe_runner = skip_runner
    CompressedTensorsWNA16MoE.apply_weights = _apply_experts


def _is_supported(config: Any, min_capability: int, error: bool = True) -> bool:
    return True


def _keep_layout(scheme: Any, layer: Any) -> None:
    symmetric = scheme.symmetric if hasattr(scheme, "symmetric") else scheme.sym
    act_order = scheme.has_g_idx if hasattr(scheme, "has_g_idx") else scheme.actorder == "group"
    if not symmetric or act_order:
        raise NotImplementedError("on a CPU only symmetric integers without act-order are supported")


def _keep_expert_layout(scheme: Any, layer: Any) -> None:
    """Keep the weights as they are, and drop the tensors that only act-order needs: no checkpoint fills them."""
    _keep_layout(scheme, layer)
    for name in ("w13_weight_g_idx", "w2_weight_g_idx", "w13_g_idx_sort_indices", "w2_g_idx_sort_indices"):
        if hasattr(layer, name):
            delattr(layer, name)


def _apply_linear(scheme: Any, layer: Any, x: Any, bias: Any) -> Any:
    import torch

    weight = dequantize(layer.weight_packed.data, layer.weight_scale.data, 32 // scheme.pack_factor)
    return torch.nn.functional.linear(x, weight.to(x.dtype), bias)


def _apply_experts(scheme: Any, layer: Any, dispatch_output: Any) -> Any:
    def matrices(expert: int) -> tuple[Any, Any]:
        return (
            dequantize(layer.w13_weight_packed[expert].T, layer.w13_weight_scale[expert].T, scheme.num_bits),
            dequantize(layer.w2_weight_packed[expert].T, layer.w2_weight_scale[expert].T, scheme.num_bits),
        )

    return compute_experts(dispatch_output, matrices, lambda x: x)


def dequantize(packed: Any, scale: Any, bits: int) -> Any:
    """Return the float32 weight [out, in]. packed: int32 [out, in · bits / 32]; scale: [out, groups], of any float."""
    import torch

    shifts = torch.arange(0, 32, bits, dtype=torch.int32, device=packed.device)
    codes = (packed[..., None] >> shifts & (1 << bits) - 1) - (1 << bits - 1)
    grouped = codes.reshape(*scale.shape, -1).float() * scale[..., None].float()
    return grouped.reshape(len(packed), -1)
