"""Hooks for one rank's part of a Megatron model, where activations are [sequence, batch, …]."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from . import megatron_layout as layouts
from .capture import Hook, Split, as_matrix

NORMS = {"input_layernorm": "input_layernorm", "pre_mlp_layernorm": "post_attention_layernorm"}
HEADS = {"q_layernorm": "q_norm", "k_layernorm": "k_norm"}


def model_hooks(model: Any, settings: dict[str, Any]) -> Iterator[Hook]:
    """Yield the hooks of a rank's part; points are numbered over the whole model."""
    sequence = "rows" if model.config.sequence_parallel else ""
    if model.pre_process:
        yield Hook(model.embedding, ("model.embed_tokens",), sharded=sequence)
    for layer in model.decoder.layers:
        yield from _layer_hooks(f"model.layers.{layer.layer_number - 1}", layer, settings, sequence)
    if model.post_process:
        yield Hook(model.decoder.final_layernorm, ("model.norm",), sharded=sequence)
        width = settings["vocabulary"]
        yield Hook(model.output_layer, ("lm_head",), sharded="columns", width=width, last_token=True)


def _layer_hooks(at: str, layer: Any, settings: dict[str, Any], sequence: str) -> Iterator[Hook]:
    for own, name in NORMS.items():
        yield Hook(getattr(layer, own), (f"{at}.{name}",), sharded=sequence)
    attention = layer.self_attention
    points = tuple(f"{at}.self_attn.{which}_proj" for which in "qkv")
    yield Hook(attention.linear_qkv, points, split=_split_qkv(settings), sharded="columns")
    for own, name in HEADS.items():
        # a model without QK norm has an identity here
        if [*getattr(attention, own).parameters()]:
            yield Hook(getattr(attention, own), (f"{at}.self_attn.{name}",), sharded="columns")
    yield Hook(attention.core_attention, (f"{at}.self_attn.core",), sharded="columns")
    yield Hook(attention.linear_proj, (f"{at}.self_attn.o_proj",), sharded=sequence)
    mlp = layer.mlp
    if hasattr(mlp, "linear_fc1"):
        yield Hook(mlp.linear_fc1, (f"{at}.mlp.gate_proj", f"{at}.mlp.up_proj"), split=_split_halves, sharded="columns")
        yield Hook(mlp.linear_fc2, (f"{at}.mlp.act",), "in", sharded="columns")
        yield Hook(mlp.linear_fc2, (f"{at}.mlp.down_proj",), sharded=sequence)
    else:
        yield Hook(mlp.router, (f"{at}.mlp.gate",), "in", _router_logits, sequence)
        yield Hook(mlp, (f"{at}.mlp",), sharded=sequence)


def _router_logits(module: Any, tensor: Any) -> list[Any]:
    """Return the router's logits; its own output holds only the chosen experts."""
    return [as_matrix(module.gating(tensor))]


def _split_halves(module: Any, tensor: Any) -> list[Any]:
    return list(as_matrix(tensor).chunk(2, -1))


def _split_qkv(settings: dict[str, Any]) -> Split:
    """Return a function that undoes the interleaving of query groups; all groups of a rank have as many queries."""
    size = settings["config"]["kv_channels"]
    queries = settings["config"]["num_attention_heads"] // settings["config"]["num_query_groups"]

    def split(module: Any, tensor: Any) -> list[Any]:
        joined = as_matrix(tensor).t()
        groups = joined.shape[0] // ((queries + 2) * size)
        return [part.t() for part in layouts.to_hugging_face("qkv", joined, groups, size)]

    return split
