"""An SGLang plugin: linear layers and experts with packed integers (compressed-tensors W4A16, W8A16) on a CPU.

SGLang 0.5.23 multiplies them with CUDA kernels only, and repacks the weights for those. Here they stay as the checkpoint has
them and are multiplied in torch. Which modules are quantized, which parameters they get, and how the checkpoint's tensors
find their way into them, all that is SGLang's own. Only symmetric weights without act-order; where there is a GPU nothing is done.

Layout (sglang/srt/layers/quantization/compressed_tensors/schemes): a linear layer has ``weight_packed`` int32
[out, in / 8] and ``weight_scale`` [out, groups]; experts have ``w13_weight_packed`` int32 [experts, in / 8, 2 · middle],
``w13_weight_scale`` [experts, groups, 2 · middle], and ``w2`` alike. The lowest bits of a word come first; the codes are
offset by half of their range.
"""

from __future__ import annotations

from typing import Any

from .sglang_experts import mixed, no_runner


def register() -> None:
    """Replace what needs CUDA. SGLang logs what is raised here and goes on without the plugin."""
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

    computed = [torch.float16, torch.bfloat16, torch.float32]
    CompressedTensorsConfig.get_supported_act_dtypes = classmethod(lambda cls: computed)
    CompressedTensorsConfig._check_scheme_supported = _supported
    CompressedTensorsWNA16.process_weights_after_loading = _stay
    CompressedTensorsWNA16.apply_weights = _linear
    CompressedTensorsWNA16MoE.process_weights_after_loading = _stay_experts
    CompressedTensorsWNA16MoE.restore_weights_before_loading = _stay_experts
    CompressedTensorsWNA16MoE.create_moe_runner = no_runner
    CompressedTensorsWNA16MoE.apply_weights = _experts


def _supported(config: Any, min_capability: int, error: bool = True) -> bool:
    return True


def _stay(scheme: Any, layer: Any) -> None:
    symmetric = scheme.symmetric if hasattr(scheme, "symmetric") else scheme.sym
    act_order = scheme.has_g_idx if hasattr(scheme, "has_g_idx") else scheme.actorder == "group"
    if not symmetric or act_order:
        raise NotImplementedError("on a CPU there are only symmetric integers without act-order")


def _stay_experts(scheme: Any, layer: Any) -> None:
    """Leave the weights as they are, without what only act-order needs: memory that no checkpoint fills."""
    _stay(scheme, layer)
    for name in ("w13_weight_g_idx", "w2_weight_g_idx", "w13_g_idx_sort_indices", "w2_g_idx_sort_indices"):
        if hasattr(layer, name):
            delattr(layer, name)


def _linear(scheme: Any, layer: Any, x: Any, bias: Any) -> Any:
    import torch

    weight = dequantized(layer.weight_packed.data, layer.weight_scale.data, 32 // scheme.pack_factor)
    return torch.nn.functional.linear(x, weight.to(x.dtype), bias)


def _experts(scheme: Any, layer: Any, dispatch_output: Any) -> Any:
    def matrices(expert: int) -> tuple[Any, Any]:
        return (
            dequantized(layer.w13_weight_packed[expert].T, layer.w13_weight_scale[expert].T, scheme.num_bits),
            dequantized(layer.w2_weight_packed[expert].T, layer.w2_weight_scale[expert].T, scheme.num_bits),
        )

    return mixed(dispatch_output, matrices, lambda x: x)


def dequantized(packed: Any, scale: Any, bits: int) -> Any:
    """Return the float32 weight [out, in]. packed: int32 [out, in · bits / 32]; scale: [out, groups], of any float."""
    import torch

    shifts = torch.arange(0, 32, bits, dtype=torch.int32, device=packed.device)
    codes = (packed[..., None] >> shifts & (1 << bits) - 1) - (1 << bits - 1)
    grouped = codes.reshape(*scale.shape, -1).float() * scale[..., None].float()
    return grouped.reshape(len(packed), -1)
