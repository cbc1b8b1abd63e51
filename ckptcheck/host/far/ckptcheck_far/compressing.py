"""Packs weights as compressed-tensors does, and unpacks them again; runs where that is installed, which engines need it to be.

Scales are those of the largest value (symmetric, rounded to nearest), as a trainer sets them that quantizes on the way to the
engine; the codes are made by the library's own compressors.
"""

from __future__ import annotations

from typing import Any

from . import communicator, plane, tensors
from .digest import digest

STATE: dict[str, Any] = {}


def load(group: dict[str, Any], form: str) -> dict[str, Any]:
    """Take a scheme. group: a config group of compressed-tensors; form: its format."""
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
    """Pack the weights of these modules in a bucket; what else is in it stays.

    packed, plain: where to put the bucket with them packed, and with them packed and unpacked again (float32). Returns the
    packed bucket as a near side says one, with its digests.
    """
    wanted = set(modules)
    made: dict[str, Any] = {}
    unpacked: dict[str, Any] = {}
    for name, tensor in plane.opened(bucket):
        module = name[: -len(".weight")] if name.endswith(".weight") else ""
        if module not in wanted:
            made[name] = unpacked[name] = tensor
            continue
        parts = _packed(tensor)
        made.update((f"{module}.{role}", part) for role, part in parts.items())
        if plain is not None:
            unpacked[name] = _unpacked(parts)
    if plain is not None:
        unpacked = {name: tensor.float() for name, tensor in unpacked.items()}
        plane.put(unpacked, plain)
    return {
        "plain_nbytes": sum(tensor.nbytes for tensor in unpacked.values()),
        "address": plane.put(made, packed) if packed is not None else {},
        "names": list(made),
        "dtypes": [tensors.dtype_name(tensor) for tensor in made.values()],
        "shapes": [list(tensor.shape) for tensor in made.values()],
        "nbytes": sum(tensor.nbytes for tensor in made.values()),
        "digests": {name: digest(tensor) for name, tensor in made.items()},
    }


def send(group: dict[str, Any], parcels: list[dict[str, Any]]) -> None:
    """Broadcast packed buckets as rank 0 of a process group (see communicator.py)."""
    communicator.send(group, (weight for parcel in parcels for weight in plane.opened(parcel)))


def _packed(weight: Any) -> dict[str, Any]:
    """Return what a checkpoint holds of a linear layer [out, in] by role. Raises ValueError where groups do not divide it."""
    from compressed_tensors.quantization.utils import calculate_qparams

    scheme = STATE["scheme"]
    group = scheme.weights.group_size or weight.shape[1]
    if weight.dim() != 2 or weight.shape[1] % group:
        raise ValueError(f"groups of {group} do not divide a weight of shape {list(weight.shape)}")
    parts = weight.float().reshape(weight.shape[0], -1, group)
    scale, _ = calculate_qparams(parts.amin(-1), parts.amax(-1), scheme.weights)
    held = {"weight": weight, "weight_scale": scale.reshape(weight.shape[0], -1).to(weight.dtype)}
    made: dict[str, Any] = STATE["compressor"].compress(held, scheme)
    return {role: part for role, part in made.items() if role != "weight_zero_point"}


def _unpacked(parts: dict[str, Any]) -> Any:
    held = {role: part.float() if role == "weight_scale" else part for role, part in parts.items()}
    return STATE["compressor"].decompress(held, STATE["scheme"])["weight"]


VERBS = {"load": load, "convert": convert, "send": send}
