"""Packs and unpacks weights with compressed-tensors; runs in an engine's Python, which always has that library.

Scales come from the largest value (symmetric, rounded to nearest), as in a trainer that quantizes on the way to the engine; the
library's own compressors produce the codes.
"""

from __future__ import annotations

from typing import Any

from . import communicator, tensor_files, tensors
from .shard_digest import digest

STATE: dict[str, Any] = {}


def load(group: dict[str, Any], form: str) -> dict[str, Any]:
    """Load a quantization scheme. group: a config group of compressed-tensors; form: its format."""
    import compressed_tensors
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import QuantizationScheme

    STATE["scheme"] = QuantizationScheme.model_validate(group)
    STATE["compressor"] = BaseCompressor.get_value_from_registry(form)
    return {"version": compressed_tensors.__version__}


def convert(
    bucket: dict[str, Any],
    modules: list[str],
    packed: dict[str, str] | None = None,
    plain: dict[str, str] | None = None,
) -> dict[str, Any]:
    """Pack the weights of the given modules in a bucket; all other tensors stay as they are.

    packed: where to write the bucket with packed weights. plain: where to write it with the weights packed and unpacked again
    (float32). Returns the packed bucket with the digests of its tensors.
    """
    packed_modules = set(modules)
    converted: dict[str, Any] = {}
    unpacked: dict[str, Any] = {}
    for name, tensor in tensor_files.read_bucket(bucket):
        module = name[: -len(".weight")] if name.endswith(".weight") else ""
        if module not in packed_modules:
            converted[name] = unpacked[name] = tensor
            continue
        parts = _pack(tensor)
        converted.update((f"{module}.{role}", part) for role, part in parts.items())
        if plain is not None:
            unpacked[name] = _unpack(parts)
    if plain is not None:
        unpacked = {name: tensor.float() for name, tensor in unpacked.items()}
        tensor_files.write_tensors(unpacked, plain)
    return {
        "plain_nbytes": sum(tensor.nbytes for tensor in unpacked.values()),
        "address": tensor_files.write_tensors(converted, packed) if packed is not None else {},
        "names": list(converted),
        "dtypes": [tensors.dtype_name(tensor) for tensor in converted.values()],
        "shapes": [list(tensor.shape) for tensor in converted.values()],
        "nbytes": sum(tensor.nbytes for tensor in converted.values()),
        "digests": {name: digest(tensor) for name, tensor in converted.items()},
    }


def send(group: dict[str, Any], buckets: list[dict[str, Any]]) -> None:
    """Broadcast packed buckets as rank 0 of a process group (see communicator.py)."""
    communicator.send_weights(group, (weight for bucket in buckets for weight in tensor_files.read_bucket(bucket)))


def _pack(weight: Any) -> dict[str, Any]:
    """Return the packed tensors of a linear layer [out, in] by role. Raises ValueError if the group size does not divide it."""
    from compressed_tensors.quantization.utils import calculate_qparams

    scheme = STATE["scheme"]
    group = scheme.weights.group_size or weight.shape[1]
    if weight.dim() != 2 or weight.shape[1] % group:
        raise ValueError(f"groups of {group} do not divide a weight of shape {list(weight.shape)}")
    parts = weight.float().reshape(weight.shape[0], -1, group)
    scale, _ = calculate_qparams(parts.amin(-1), parts.amax(-1), scheme.weights)
    plain = {"weight": weight, "weight_scale": scale.reshape(weight.shape[0], -1).to(weight.dtype)}
    compressed: dict[str, Any] = STATE["compressor"].compress(plain, scheme)
    return {role: part for role, part in compressed.items() if role != "weight_zero_point"}


def _unpack(parts: dict[str, Any]) -> Any:
    packed = {role: part.float() if role == "weight_scale" else part for role, part in parts.items()}
    return STATE["compressor"].decompress(packed, STATE["scheme"])["weight"]


RPC_METHODS = {"load": load, "convert": convert, "send": send}
