"""``config_groups`` of compressed-tensors: which targets there are and what they are quantized to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ckptcheck.dialects.base import Refused, Unknown

_BASE: dict[str, Any] = {
    "num_bits": 8, "type": "int", "symmetric": True, "group_size": None, "strategy": None, "block_structure": None,
    "dynamic": False, "actorder": None, "scale_dtype": None, "zp_dtype": None,
}  # fmt: skip
"""What QuantizationArgs of compressed-tensors 0.20.0 takes for a field that is not there, so that two groups that say
the same in different words are the same."""

Scheme = tuple[Any, ...]


def targets(config: Mapping[str, Any], *, vllm: bool = False) -> dict[str, Scheme]:
    """Return target → what it means, in the order of the config, a later group replacing an earlier one's.

    vllm: as vLLM 0.32.0 does, leave out groups whose only target ends in ``Attention``, and
    refuse an actorder by group. Raises Refused where the
    engines raise on the config.
    """
    groups = config.get("config_groups", {})
    if not isinstance(groups, dict):
        raise Refused("config_groups is not an object")
    found: dict[str, Scheme] = {}
    for name, group in groups.items():
        if not isinstance(group, dict):
            raise Refused(f"config_groups.{name} is not an object")
        listed = group.get("targets")
        if not isinstance(listed, list) or not all(isinstance(target, str) for target in listed):
            raise Refused(f"config_groups.{name}.targets is not a list of strings")
        if vllm and len(listed) == 1 and listed[0].endswith("Attention"):
            continue
        if listed and not isinstance(group.get("weights"), dict):
            raise Refused(f"config_groups.{name} says nothing of weights")
        if listed and vllm:
            check_order(name, group)
        for target in listed:
            found[target] = (_args(group["weights"]), _args(group.get("input_activations")), group.get("format"))
    return found


def check_order(name: str, group: Mapping[str, Any]) -> None:
    """Raise Refused for an order of activations that compressed-tensors 0.20 and vLLM 0.32 have removed."""
    weights = group.get("weights")
    order = weights.get("actorder") if isinstance(weights, dict) else None
    if order is True or (isinstance(order, str) and order.lower() in ("group", "dynamic")):
        raise Refused(f"config_groups.{name} has an actorder that is no longer supported")


def ignored(config: Mapping[str, Any], key: str = "ignore") -> list[object]:
    """Return the ignore list; a string is the list of its letters to the engines. Raises Refused for
    what cannot be gone through, Unknown for an object.
    """
    listed = config.get(key, [])
    if isinstance(listed, str | list):
        return list(listed)
    if isinstance(listed, dict):
        raise Unknown(f"{key} is an object")
    raise Refused(f"{key} is not a list")


def _args(value: object) -> object:
    if not isinstance(value, dict):
        return None
    full = {**_BASE, **{name: each for name, each in value.items() if name not in ("observer", "observer_kwargs")}}
    if full["strategy"] is None:
        size = full["group_size"]
        full["strategy"] = "tensor" if size is None else "channel" if size == -1 else "group"
    return tuple(sorted((name, repr(each)) for name, each in full.items()))
