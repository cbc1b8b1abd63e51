"""Hooks for models whose modules have Hugging Face names: those of transformers, vLLM and SGLang.

Engines fuse projections (qkv_proj, gate_up_proj) and shard them over ranks: a rank holds q of its heads, then k, then v. Their
norms also add the residual and return (output, residual); the output comes first.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from .capture import Hook, as_matrix

LAYER = re.compile(r"(?P<model>.{0,400}?)layers\.(?P<layer>\d+)\.(?P<part>.+)")
REPLICATED = ("input_layernorm", "self_attn.o_proj", "post_attention_layernorm", "mlp.gate", "mlp.down_proj")
"""Modules whose whole output every rank holds."""
SHARDED = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.gate_proj", "mlp.up_proj")
BY_HEAD = ("self_attn.q_norm", "self_attn.k_norm")
INPUT_POINTS = {"self_attn.o_proj": "self_attn.core", "mlp.down_proj": "mlp.act"}
"""Modules whose input is captured → the point: the output of the attention core, and of the gated activation."""
OUTSIDE_LAYERS = {"embed_tokens": "model.embed_tokens", "norm": "model.norm"}


def model_hooks(model: Any) -> Iterator[Hook]:
    """Yield the hooks of a model."""
    for name, module in model.named_modules():
        if match := LAYER.fullmatch(name):
            yield from _layer_hooks(f"model.layers.{match['layer']}", match["part"], module)
        elif name.removeprefix("model.") in OUTSIDE_LAYERS:
            yield Hook(module, (OUTSIDE_LAYERS[name.removeprefix("model.")],))
        elif name == ("logits_processor" if hasattr(model, "logits_processor") else "lm_head"):
            yield Hook(module, ("lm_head",), split=_split_logits, last_token=True)


def _layer_hooks(layer: str, part: str, module: Any) -> Iterator[Hook]:
    if part in INPUT_POINTS:
        yield Hook(module, (f"{layer}.{INPUT_POINTS[part]}",), "in", sharded="columns")
    if part in REPLICATED:
        yield Hook(module, (f"{layer}.{part}",))
    elif part in SHARDED or part in BY_HEAD:
        yield Hook(module, (f"{layer}.{part}",), sharded="columns", by_head=part in BY_HEAD)
    elif part == "self_attn.qkv_proj":
        replicas = getattr(module, "num_kv_head_replicas", 1)
        points = tuple(f"{layer}.self_attn.{which}_proj" for which in "qkv")
        yield Hook(module, points, split=_split_fused, sharded="columns", replicas=(1, replicas, replicas))
    elif part == "mlp.gate_up_proj":
        points = (f"{layer}.mlp.gate_proj", f"{layer}.mlp.up_proj")
        yield Hook(module, points, split=_split_fused, sharded="columns")
    elif part == "mlp" and hasattr(module, "experts"):
        yield Hook(module, (f"{layer}.mlp",))


def _split_logits(module: Any, tensor: Any) -> list[Any]:
    return [tensor.reshape(-1, tensor.shape[-1])]


def _split_fused(module: Any, tensor: Any) -> list[Any]:
    """Split a fused projection by the sizes that the module declares."""
    sizes = getattr(module, "output_partition_sizes", None)
    if sizes is None:
        raise LookupError(
            f"{type(module).__name__} has no output_partition_sizes, so its output cannot be split into projections"
        )
    return list(as_matrix(tensor).split(list(sizes), -1))
