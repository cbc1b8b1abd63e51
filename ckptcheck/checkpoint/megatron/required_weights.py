"""Derives the weights that each layer of a Megatron model must have from its saved arguments, if they describe a plain GPT.

Sources: megatron/core/models/gpt/gpt_layer_specs.py (which modules a layer is built of, `moe_layer_freq`),
megatron/core/transformer/attention.py and mlp.py. The names are as in weights.py; older names are accepted in their place.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from ckptcheck.checkpoint.megatron.structure import Structure, positive_argument

OTHER_BLOCKS = (
    "spec",
    "custom_model_provider_path",
    "is_hybrid_model",
    "hybrid_override_pattern",
    "hybrid_layer_pattern",
    "heterogeneous_block_specs",
    "heterogeneous_layers_config_path",
    "heterogeneous_layers_config_encoded_json",
    "experimental_attention_variant",
    "linear_attention_type",
    "linear_attention_freq",
    "retro_add_retriever",
)
"""Arguments that change how layers are built, or how each one is."""
ADAPTER = re.compile(r"\.(adapter|to_wrap|lora_\w+)\.")
QKV = ("self_attention.linear_qkv.weight", "self_attention.query_key_value.weight")
PROJ = ("self_attention.linear_proj.weight", "self_attention.dense.weight")
FC1 = ("mlp.linear_fc1.weight", "mlp.dense_h_to_4h.weight")
FC2 = ("mlp.linear_fc2.weight", "mlp.dense_4h_to_h.weight")
ROUTER = ("mlp.router.weight",)
LATENT = (
    ("self_attention.linear_q_proj.weight", "self_attention.linear_q_up_proj.weight"),
    ("self_attention.linear_kv_up_proj.weight",),
)
NORMS = (
    ("input_layernorm.weight", "self_attention.linear_qkv.layer_norm_weight", "input_norm.weight"),
    (
        "pre_mlp_layernorm.weight",
        "mlp.linear_fc1.layer_norm_weight",
        "post_attention_layernorm.weight",
        "post_attention_norm.weight",
    ),
)
PAIR = ("linear_fc1.weight", "linear_fc2.weight")
PART = re.compile(r"(^|\.)(weight|bias)$")
KNOWN = re.compile(
    r"self_attention\.(linear_(qkv|proj|q_proj|[qk]v?_(up|down)_proj)|query_key_value|dense|[qk]v?_layernorm|core_attention)\."
    r"|mlp\.(linear_fc[12]|dense_\w+|router|experts|shared_experts)\."
)
"""Names within the attention and the feed-forward block of a plain GPT; a model with more is no plain GPT."""


def is_plain(arguments: Mapping[str, Any], layers: Mapping[int, set[str]]) -> bool:
    """Whether arguments and names belong to a GPT that megatron-core builds from its own specs."""
    names = {name for found in layers.values() for name in found}
    return (
        positive_argument(arguments, "num_attention_heads") is not None
        and not any(arguments.get(name) for name in OTHER_BLOCKS)
        and not any(ADAPTER.search(f".{name}") for name in names)
        and all(KNOWN.match(name) for name in names if name.startswith(("self_attention.", "mlp.")))
        and not any(name.startswith(("mixer.", "cross_attention.")) for name in names)
    )


def expert_layers(arguments: Mapping[str, Any], layers: Iterable[int]) -> set[int] | None:
    """Return the layers that have experts by `num_experts` and `moe_layer_freq`; None if the arguments do not decide it."""
    if "num_experts" not in arguments:
        return None
    if not positive_argument(arguments, "num_experts"):
        return set()
    rhythm = arguments.get("moe_layer_freq", 1)
    if type(rhythm) is int and rhythm > 0:
        return {layer for layer in layers if layer % rhythm == 0}
    if isinstance(rhythm, list):
        return {layer for layer in layers if layer < len(rhythm) and rhythm[layer] == 1}
    return None


def lacking(arguments: Mapping[str, Any], structure: Structure) -> dict[int, set[str]]:
    """Return layer → the required weights that it lacks, by their current names, without the experts' weights.

    Empty if the arguments do not describe a plain GPT.
    """
    layers = structure.layers
    if not is_plain(arguments, layers):
        return {}
    routed = expert_layers(arguments, layers) or set()
    found: dict[int, set[str]] = {}
    for layer, names in layers.items():
        has_experts = layer in structure.experts or any(
            name.startswith(("mlp.router.", "mlp.experts.")) for name in names
        )
        wanted: list[tuple[str, ...]] = list(NORMS)
        if has_experts or (layer in routed and not names & {*FC1, *FC2}):
            wanted.append(ROUTER)
        else:
            wanted += [FC1, FC2]
        wanted += _attention(arguments)
        if missing := {options[0] for options in wanted if not names & set(options)}:
            found[layer] = {_half(name, names) for name in _as_called(missing, layers)}
    return found


def _attention(arguments: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Return the weights of attention, each with the names it may have."""
    if arguments.get("multi_latent_attention"):
        return [PROJ, *LATENT]
    found: list[tuple[str, ...]] = [QKV, PROJ]
    if arguments.get("qk_layernorm") is True and not arguments.get("qk_l2_norm"):
        found += [(f"self_attention.{part}_layernorm.weight",) for part in "qk"]
    if arguments.get("add_qkv_bias") is True:
        found.append(tuple(name.replace(".weight", ".bias") for name in QKV))
    return found


def _as_called(missing: set[str], layers: Mapping[int, set[str]]) -> set[str]:
    """Give a missing norm the name that the other layers use."""
    names = {name for found in layers.values() for name in found}
    others = {options[0]: next((name for name in options if name in names), options[0]) for options in NORMS}
    return {others.get(name, name) for name in missing}


def _half(name: str, names: set[str]) -> str:
    """Return the name of the lost half of a gated weight, if the other half is there."""
    return next((f"{name}_{lost}" for lost, there in ("wv", "vw") if f"{name}_{there}" in names), name)


def torn_experts(structure: Structure) -> dict[int, dict[str, set[int]]]:
    """Return layer → missing weight → the experts that lack it: fc1 without fc2, or a weight that most experts have."""
    torn: dict[int, dict[str, set[int]]] = {}
    for layer, parts in structure.parts.items():
        everyone = structure.experts[layer]
        due = {name for name, having in parts.items() if PART.search(name) and 2 * len(having) > len(everyone)}
        if any(name.startswith(PAIR) for name in parts):
            due |= set(PAIR)
        for name in sorted(due):
            if lacking_experts := everyone - parts.get(name, set()):
                torn.setdefault(layer, {})[name] = lacking_experts
    return torn
