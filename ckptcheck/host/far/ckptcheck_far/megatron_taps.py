"""Where to listen in a rank's part of a Megatron model; activations are [sequence, batch, …] there."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from . import megatron_layout as layouts
from .capture import Cut, Tap, matrix

NORMS = {"input_layernorm": "input_layernorm", "pre_mlp_layernorm": "post_attention_layernorm"}
HEADS = {"q_layernorm": "q_norm", "k_layernorm": "k_norm"}


def taps(model: Any, settings: dict[str, Any]) -> Iterator[Tap]:
    """Yield the taps of a rank's part; points are numbered over the whole model."""
    sequence = "rows" if model.config.sequence_parallel else ""
    if model.pre_process:
        yield Tap(model.embedding, ("model.embed_tokens",), shared=sequence)
    for layer in model.decoder.layers:
        yield from _layer(f"model.layers.{layer.layer_number - 1}", layer, settings, sequence)
    if model.post_process:
        yield Tap(model.decoder.final_layernorm, ("model.norm",), shared=sequence)
        yield Tap(model.output_layer, ("lm_head",), shared="columns", width=settings["vocabulary"], last=True)


def _layer(at: str, layer: Any, settings: dict[str, Any], sequence: str) -> Iterator[Tap]:
    for own, name in NORMS.items():
        yield Tap(getattr(layer, own), (f"{at}.{name}",), shared=sequence)
    attention = layer.self_attention
    points = tuple(f"{at}.self_attn.{which}_proj" for which in "qkv")
    yield Tap(attention.linear_qkv, points, cut=_qkv(settings), shared="columns")
    for own, name in HEADS.items():
        if [*getattr(attention, own).parameters()]:  # else it is an identity
            yield Tap(getattr(attention, own), (f"{at}.self_attn.{name}",), shared="columns")
    yield Tap(attention.core_attention, (f"{at}.self_attn.core",), shared="columns")
    yield Tap(attention.linear_proj, (f"{at}.self_attn.o_proj",), shared=sequence)
    mlp = layer.mlp
    if hasattr(mlp, "linear_fc1"):
        yield Tap(mlp.linear_fc1, (f"{at}.mlp.gate_proj", f"{at}.mlp.up_proj"), cut=_halves, shared="columns")
        yield Tap(mlp.linear_fc2, (f"{at}.mlp.act",), "in", shared="columns")
        yield Tap(mlp.linear_fc2, (f"{at}.mlp.down_proj",), shared=sequence)
    else:
        yield Tap(mlp.router, (f"{at}.mlp.gate",), "in", _logits, sequence)
        yield Tap(mlp, (f"{at}.mlp",), shared=sequence)


def _logits(module: Any, tensor: Any) -> list[Any]:
    """Ask the router for what it computes first; it gives out only what it chose."""
    return [matrix(module.gating(tensor))]


def _halves(module: Any, tensor: Any) -> list[Any]:
    return list(matrix(tensor).chunk(2, -1))


def _qkv(settings: dict[str, Any]) -> Cut:
    """Undo the interleaving of query groups; a rank has the same number of queries to each of its groups."""
    size = settings["config"]["kv_channels"]
    queries = settings["config"]["num_attention_heads"] // settings["config"]["num_query_groups"]

    def cut(module: Any, tensor: Any) -> list[Any]:
        joined = matrix(tensor).t()
        groups = joined.shape[0] // ((queries + 2) * size)
        return [part.t() for part in layouts.take_apart("qkv", joined, groups, size)]

    return cut
