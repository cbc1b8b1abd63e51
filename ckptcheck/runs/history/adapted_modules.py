"""Tells the tensors of an adapter from those of its base, by the names that a trainer sends."""

from __future__ import annotations

import re
from collections.abc import Collection

from ckptcheck.checkpoint.adapter import LORA, PREFIX
from ckptcheck.consumers.engine_tensors import find_source_tensors

MEGATRON_ADAPTER = re.compile(r"(?P<module>.+)\.adapter\.linear_(in|out)\.weight")
"""A LoRA matrix of Megatron-Bridge: bridge/peft/lora_layers.py wraps a linear layer as `to_wrap` and `adapter`."""
SESSION = re.compile(r"^[\w.-]+:")
"""The name of an adapter before that of its tensor, as miles streams it: ``{lora_name}:{hf_key}`` (miles#2756)."""
WRAPPED = re.compile(r"\.(base_layer|to_wrap)(?=\.weight$)")
"""What PEFT and Megatron-Bridge put into the name of a weight that has an adapter."""


def find_adapted_module(name: str) -> str:
    """Return the module that a tensor of an adapter belongs to, "" for any other tensor.

    >>> find_adapted_module("base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight")
    'model.layers.0.self_attn.q_proj'
    >>> find_adapted_module("model.layers.0.self_attn.q_proj.weight")
    ''
    """
    if ".lora_" not in name and ".adapter." not in name:  # records have half a million names
        return ""
    match = LORA.fullmatch(name) or MEGATRON_ADAPTER.fullmatch(name)
    return SESSION.sub("", match["module"], count=1).removeprefix(PREFIX) if match is not None else ""


def list_adapted_weights(names: Collection[str], modules: Collection[str]) -> list[str]:
    """Return the weights among the names that have an adapter, also where one of the two sides fuses projections.

    modules: as `find_adapted_module` returns them.
    """
    plain = {WRAPPED.sub("", name.removeprefix(PREFIX)): name for name in names}
    weights = {f"{module}.weight" for module in modules}
    of_fused = {part for weight in weights - plain.keys() for part in find_source_tensors(weight, plain.keys())}
    return [
        name
        for weight, name in plain.items()
        if weight in weights or weight in of_fused or find_source_tensors(weight, weights)
    ]
