"""SGLang plugins that compute quantized layers of compressed-tensors, and LoRA, on a CPU; on a machine with a GPU they do nothing.

SGLang 0.5.23 multiplies packed integers (W4A16, W8A16) and INT8 and FP8 (W8A8) with CUDA kernels only, and repacks or transposes
the weights for those, so that stock SGLang accepts such a layer only once. These plugins keep the layout of the checkpoint and
multiply in torch. SGLang itself still decides which modules are quantized, which parameters they get, and how the checkpoint's
tensors reach them. Symmetric integers without act-order are supported, and scales by channel, as llm-compressor writes them.
SGLang has INT8 experts for NPUs only.

Layout (sglang/srt/layers/quantization/compressed_tensors/schemes). Packed integers: a linear layer has ``weight_packed`` int32
[out, in / 8] and ``weight_scale`` [out, groups]; experts have ``w13_weight_packed`` int32 [experts, in / 8, 2 · middle],
``w13_weight_scale`` [experts, groups, 2 · middle], and ``w2`` alike. The lowest bits of a word come first; the codes are
offset by half of their range. W8A8: ``weight`` int8 or float8 [out, in] and ``weight_scale`` float32 [out, 1]; experts have
``w13_weight`` [experts, 2 · middle, hidden], ``w13_weight_scale`` [experts, 2 · middle, 1], and ``w2`` alike.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

MAX_VALUE = {"int8": 127.0, "float8_e4m3fn": 448.0}
"""The largest value of a dtype."""
ACT_ORDER = ("w13_weight_g_idx", "w2_weight_g_idx", "w13_g_idx_sort_indices", "w2_g_idx_sort_indices")
"""Tensors of experts that only act-order needs."""


def register_integers() -> None:
    """Replace the methods for packed integers. SGLang logs an exception of a plugin and continues without it."""
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
    CompressedTensorsConfig._check_scheme_supported = lambda config, min_capability, error=True: True
    CompressedTensorsWNA16.process_weights_after_loading = _keep_integers
    CompressedTensorsWNA16.apply_weights = _apply_integers
    CompressedTensorsWNA16MoE.process_weights_after_loading = _keep_expert_integers
    CompressedTensorsWNA16MoE.restore_weights_before_loading = _keep_expert_integers
    CompressedTensorsWNA16MoE.create_moe_runner = _skip_runner
    CompressedTensorsWNA16MoE.apply_weights = _apply_expert_integers


def register_eight_bits() -> None:
    """Replace the methods for INT8 and FP8; `register_integers` makes SGLang accept the schemes."""
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
        linear.process_weights_after_loading = _keep_eight_bits
        linear.apply_weights = _apply_eight_bits
    CompressedTensorsW8A8Fp8MoE.process_weights_after_loading = _keep_eight_bits
    CompressedTensorsW8A8Fp8MoE.create_moe_runner = _skip_runner
    CompressedTensorsW8A8Fp8MoE.apply_weights = _apply_expert_eight_bits


def register_unpinned() -> None:
    """Keep host memory pageable although SGLang's LoRA wants it pinned, which only makes copies to a device faster."""
    import torch

    if torch.cuda.is_available():
        return
    from sglang.srt.lora import layers
    from sglang.srt.lora.backend import torch_backend

    torch.Tensor.pin_memory = lambda tensor, *_, **__: tensor
    for module in (layers, torch_backend):
        module.torch = _UnpinnedTorch(torch)


class _UnpinnedTorch:
    """torch, whose functions that make tensors ignore pin_memory."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch

    def __getattr__(self, name: str) -> Any:
        own = getattr(self._torch, name)
        if name not in ("tensor", "zeros"):
            return own
        return lambda *arguments, pin_memory=False, **options: own(*arguments, **options)


def _skip_runner(scheme: Any, layer: Any, moe_runner_config: Any) -> None:
    """Replace `create_moe_runner`: there is no kernel to set up."""
    scheme.moe_runner_config = moe_runner_config


def _keep_integers(scheme: Any, layer: Any) -> None:
    symmetric = scheme.symmetric if hasattr(scheme, "symmetric") else scheme.sym
    act_order = scheme.has_g_idx if hasattr(scheme, "has_g_idx") else scheme.actorder == "group"
    if not symmetric or act_order:
        raise NotImplementedError("on a CPU only symmetric integers without act-order are supported")


def _keep_expert_integers(scheme: Any, layer: Any) -> None:
    """Keep the weights as they are, and drop the tensors that only act-order needs: no checkpoint fills them."""
    _keep_integers(scheme, layer)
    for name in ACT_ORDER:
        if hasattr(layer, name):
            delattr(layer, name)


def _apply_integers(scheme: Any, layer: Any, x: Any, bias: Any) -> Any:
    import torch

    weight = dequantize(layer.weight_packed.data, layer.weight_scale.data, 32 // scheme.pack_factor)
    return torch.nn.functional.linear(x, weight.to(x.dtype), bias)


def _apply_expert_integers(scheme: Any, layer: Any, dispatch_output: Any) -> Any:
    def matrices(expert: int) -> tuple[Any, Any]:
        return (
            dequantize(layer.w13_weight_packed[expert].T, layer.w13_weight_scale[expert].T, scheme.num_bits),
            dequantize(layer.w2_weight_packed[expert].T, layer.w2_weight_scale[expert].T, scheme.num_bits),
        )

    return _compute_experts(dispatch_output, matrices, lambda x: x)


def dequantize(packed: Any, scale: Any, bits: int) -> Any:
    """Return the float32 weight [out, in]. packed: int32 [out, in · bits / 32]; scale: [out, groups], of any float."""
    import torch

    shifts = torch.arange(0, 32, bits, dtype=torch.int32, device=packed.device)
    codes = (packed[..., None] >> shifts & (1 << bits) - 1) - (1 << bits - 1)
    grouped = codes.reshape(*scale.shape, -1).float() * scale[..., None].float()
    return grouped.reshape(len(packed), -1)


def _keep_eight_bits(scheme: Any, layer: Any) -> None:
    strategy = getattr(scheme, "strategy", None) or scheme.weight_quant.strategy
    static = getattr(scheme, "is_static_input_scheme", False) or getattr(scheme, "static_input_scales", False)
    if str(getattr(strategy, "value", strategy)) != "channel" or static:
        raise NotImplementedError("on a CPU only scales by channel, and inputs rounded per token, are supported")


def _apply_eight_bits(scheme: Any, layer: Any, x: Any, bias: Any) -> Any:
    import torch

    weight = layer.weight.data.float() * layer.weight_scale.data.float()
    return torch.nn.functional.linear(round_per_token(x, layer.weight.dtype), weight.to(x.dtype), bias)


def _apply_expert_eight_bits(scheme: Any, layer: Any, dispatch_output: Any) -> Any:
    def matrices(expert: int) -> tuple[Any, Any]:
        return (
            layer.w13_weight.data[expert].float() * layer.w13_weight_scale.data[expert].float(),
            layer.w2_weight.data[expert].float() * layer.w2_weight_scale.data[expert].float(),
        )

    return _compute_experts(dispatch_output, matrices, lambda x: round_per_token(x, layer.w13_weight.dtype))


def round_per_token(x: Any, dtype: Any) -> Any:
    """Round inputs [tokens, in] to int8 or float8 with a scale for each token, and return them in their own dtype."""
    import torch

    largest = MAX_VALUE[str(dtype).rpartition(".")[2]]
    scale = x.float().abs().amax(-1, keepdim=True).clamp_min(1e-10) / largest
    codes = x.float() / scale
    codes = codes.round() if dtype == torch.int8 else codes.to(dtype).float()
    return (codes * scale).to(x.dtype)


def _compute_experts(
    dispatch_output: Any, matrices: Callable[[int], tuple[Any, Any]], round_input: Callable[[Any], Any]
) -> Any:
    """Run the tokens of each expert through it: SiLU of the gate times up, then down, weighted by the router.

    matrices: expert → gate stacked on up [2 · intermediate, hidden], and down [hidden, intermediate]. round_input: quantizes and
    dequantizes the inputs.
    """
    import torch
    from sglang.srt.layers.moe.token_dispatcher import StandardCombineInput
    from torch.nn.functional import linear, silu

    x = dispatch_output.hidden_states
    weights, expert_ids = dispatch_output.topk_output[:2]
    out = torch.zeros_like(x)
    for expert in expert_ids.unique().tolist():
        if expert < 0:
            continue  # a padded token
        token, rank = (expert_ids == expert).nonzero(as_tuple=True)
        gate_up, down = (matrix.to(x.dtype) for matrix in matrices(expert))
        gate, up = linear(round_input(x[token]), gate_up).chunk(2, -1)
        result = linear(round_input(silu(gate) * up), down)
        out.index_add_(0, token, result * weights[token, rank, None].to(result.dtype))
    return StandardCombineInput(hidden_states=out)
