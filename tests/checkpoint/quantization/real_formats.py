"""Modules compressed by the compressors of compressed-tensors itself, as the header of a file would describe them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

Tensors = dict[str, Any]
INT_ACTIVATIONS = {"num_bits": 8, "type": "int", "strategy": "token", "dynamic": True}
FP8_TOKENS = {"num_bits": 8, "type": "float", "strategy": "token", "dynamic": True}
FP8_STATIC = {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False}
MX = {"type": "float", "strategy": "group", "group_size": 32, "scale_dtype": "torch.uint8", "zp_dtype": "torch.uint8"}
NVFP4 = {
    "num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16,
    "scale_dtype": "torch.float8_e4m3fn", "zp_dtype": "torch.float8_e4m3fn",
}  # fmt: skip


def schemes() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield format and config group for everything that compressed-tensors has a compressor for."""
    for bits in (2, 3, 4, 5, 6, 7, 8):
        for symmetric in (True, False):
            for strategy, group in (("group", 32), ("group", 16), ("channel", None), ("tensor", None)):
                weights = {
                    "num_bits": bits,
                    "type": "int",
                    "symmetric": symmetric,
                    "strategy": strategy,
                    "group_size": group,
                }
                yield "pack-quantized", {"weights": weights}
    yield "pack-quantized", {"weights": {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32},
                             "input_activations": INT_ACTIVATIONS}  # fmt: skip
    for kind, activations in (("int", INT_ACTIVATIONS), ("float", FP8_TOKENS), ("float", FP8_STATIC)):
        for strategy in ("channel", "tensor"):
            weights = {"num_bits": 8, "type": kind, "symmetric": True, "strategy": strategy}
            yield f"{kind}-quantized", {"weights": weights, "input_activations": activations}
    for strategy in ("channel", "tensor"):
        weights = {"num_bits": 8, "type": "int", "symmetric": False, "strategy": strategy}
        static = {"num_bits": 8, "type": "int", "strategy": "tensor", "symmetric": False, "dynamic": False}
        yield "int-quantized", {"weights": weights, "input_activations": static}
    block = {"num_bits": 8, "type": "float", "strategy": "block", "block_structure": [32, 16]}
    groups = {"num_bits": 8, "type": "float", "strategy": "group", "group_size": 128, "dynamic": True}
    yield "float-quantized", {"weights": block, "input_activations": groups}
    yield "nvfp4-pack-quantized", {"weights": NVFP4}
    yield "nvfp4-pack-quantized", {"weights": NVFP4, "input_activations": {**NVFP4, "dynamic": "local"}}
    yield "mxfp4-pack-quantized", {"weights": {**MX, "num_bits": 4}}
    yield "mxfp6-pack-quantized", {"weights": {**MX, "num_bits": 6}}
    yield "mxfp8-quantized", {"weights": {**MX, "num_bits": 8}}


def compressed(form: str, group: dict[str, Any], rows: int, columns: int, seed: int = 0) -> tuple[Tensors, Any]:
    """Compress a random bf16 Linear; return its tensors by name within the module, and the weight it had (float32)."""
    import torch
    from compressed_tensors.compressors import compress_module
    from compressed_tensors.quantization import QuantizationScheme
    from compressed_tensors.quantization.lifecycle.initialize import initialize_module_for_quantization

    scheme = QuantizationScheme.model_validate({"targets": ["Linear"], **group})
    generator = torch.Generator().manual_seed(seed)
    module = torch.nn.Linear(columns, rows, bias=False, dtype=torch.bfloat16)
    module.weight.data = (torch.randn(rows, columns, generator=generator) / columns**0.5).to(torch.bfloat16)
    weight = module.weight.data.float()
    initialize_module_for_quantization(module, scheme, force_zero_point=False)
    _calibrate(module, scheme, weight)
    compress_module(module, form)
    return dict(module.state_dict()), weight


def _calibrate(module: Any, scheme: Any, weight: Any) -> None:
    """Set scales and zero points as a min-max observer would."""
    import torch
    from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam

    args = scheme.weights
    low, high = _ranges(weight, args)
    scaled = {}
    if args.strategy == "tensor_group":
        scaled["global_scale"] = generate_gparam(weight.amin().reshape(1), weight.amax().reshape(1))
        module.weight_global_scale.data.copy_(scaled["global_scale"])
    scale, zero_point = calculate_qparams(low, high, args, **scaled)
    module.weight_scale.data = scale.reshape(module.weight_scale.shape).to(module.weight_scale.dtype)
    if not args.symmetric:
        module.weight_zero_point.data = zero_point.reshape(module.weight_zero_point.shape).to(
            module.weight_zero_point.dtype
        )
    for name in ("input_scale", "input_global_scale"):
        if hasattr(module, name):
            getattr(module, name).data.fill_(0.05 if name == "input_scale" else 300.0)
    assert torch.isfinite(module.weight_scale.float()).all()


def _ranges(weight: Any, args: Any) -> tuple[Any, Any]:
    import torch

    rows, columns = weight.shape
    if args.strategy == "tensor":
        parts = weight.reshape(1, -1)
    elif args.strategy == "block":
        high, wide = args.block_structure
        padded = torch.nn.functional.pad(weight, (0, -columns % wide, 0, -rows % high))
        parts = padded.reshape(padded.shape[0] // high, high, -1, wide).transpose(1, 2).flatten(2)
    else:
        parts = weight.reshape(rows, -1, args.group_size or columns)
    return parts.amin(-1), parts.amax(-1)
