"""Brings Megatron's tensor names to one normal form, that of the local layer spec.

- Transformer Engine stores a norm inside the linear layer that follows it, and numbers the weights of grouped experts.
- Layers of multi-token prediction have a list of their own; Hugging Face files number them after the other layers.
- ckptcheck/checkpoint/megatron/weights.py has already split stacked layers and experts.

Sources: megatron/core/models/gpt/gpt_layer_specs.py, transformer/moe/experts.py, multi_token_prediction.py (0.16).
"""

from __future__ import annotations

import re

FUSED_NORMS = {
    ".self_attention.linear_qkv.layer_norm_": ".input_layernorm.",
    ".mlp.linear_fc1.layer_norm_": ".pre_mlp_layernorm.",
    ".self_attention.linear_q_up_proj.layer_norm_": ".self_attention.q_layernorm.",
    ".self_attention.linear_kv_up_proj.layer_norm_": ".self_attention.kv_layernorm.",
}
"""Where Transformer Engine stores a norm → the norm's own name."""
GROUPED_EXPERTS = re.compile(r"(.+\.mlp\.experts)\.(linear_fc[12])\.(weight|bias)([0-9]+)")
PREDICTION = re.compile(r"mtp\.layers\.([0-9]+)\.(?:transformer_layer\.|mtp_model_layer\.)?(.+)")


def normalize_megatron_name(name: str, layers: int | None) -> str:
    """Return a weight's name in the normal form. layers: number of layers before those of multi-token prediction.

    >>> normalize_megatron_name("mtp.layers.0.transformer_layer.mlp.experts.linear_fc1.weight7", 61)
    'decoder.layers.61.mlp.experts.local_experts.7.linear_fc1.weight'
    """
    for fused, plain in FUSED_NORMS.items():
        name = name.replace(fused, plain)
    if layers is not None and (layer := PREDICTION.fullmatch(name)):
        name = f"decoder.layers.{layers + int(layer[1])}.{layer[2]}"
    if grouped := GROUPED_EXPERTS.fullmatch(name):
        name = f"{grouped[1]}.local_experts.{grouped[4]}.{grouped[2]}.{grouped[3]}"
    return name
