"""Where to listen in a model whose modules have Hugging Face's names: transformers' own, vLLM's and SGLang's.

Engines join projections (qkv_proj, gate_up_proj) and cut them among ranks; a rank's part is q of its heads, then k, then v. Their
norms add the residual as well and return both; the first is what goes on.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from .capture import Tap, matrix

LAYER = re.compile(r"(?P<model>.*?)layers\.(?P<layer>\d+)\.(?P<part>.+)")
WHOLE = ("input_layernorm", "self_attn.o_proj", "post_attention_layernorm", "mlp.gate", "mlp.down_proj")
"""Each rank has the whole of what these give out."""
CUT = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.gate_proj", "mlp.up_proj")
BY_HEAD = ("self_attn.q_norm", "self_attn.k_norm")
INTO = {"self_attn.o_proj": "self_attn.core", "mlp.down_proj": "mlp.act"}
"""What goes in there is what the attention, or the gated activation, came to."""
OUTSIDE = {"embed_tokens": "model.embed_tokens", "norm": "model.norm"}


def taps(model: Any) -> Iterator[Tap]:
    """Yield the taps of a model."""
    for name, module in model.named_modules():
        if found := LAYER.fullmatch(name):
            yield from _in_layer(f"model.layers.{found['layer']}", found["part"], module)
        elif name.removeprefix("model.") in OUTSIDE:
            yield Tap(module, (OUTSIDE[name.removeprefix("model.")],))
        elif name == ("logits_processor" if hasattr(model, "logits_processor") else "lm_head"):
            yield Tap(module, ("lm_head",), cut=_logits, last=True)


def _in_layer(at: str, part: str, module: Any) -> Iterator[Tap]:
    if part in INTO:
        yield Tap(module, (f"{at}.{INTO[part]}",), "in", shared="columns")
    if part in WHOLE:
        yield Tap(module, (f"{at}.{part}",))
    elif part in CUT or part in BY_HEAD:
        yield Tap(module, (f"{at}.{part}",), shared="columns", heads=part in BY_HEAD)
    elif part == "self_attn.qkv_proj":
        copies = getattr(module, "num_kv_head_replicas", 1)
        points = tuple(f"{at}.self_attn.{which}_proj" for which in "qkv")
        yield Tap(module, points, cut=_parts, shared="columns", copies=(1, copies, copies))
    elif part == "mlp.gate_up_proj":
        yield Tap(module, (f"{at}.mlp.gate_proj", f"{at}.mlp.up_proj"), cut=_parts, shared="columns")
    elif part == "mlp" and hasattr(module, "experts"):
        yield Tap(module, (f"{at}.mlp",))


def _logits(module: Any, tensor: Any) -> list[Any]:
    return [tensor.reshape(-1, tensor.shape[-1])]


def _parts(module: Any, tensor: Any) -> list[Any]:
    """Take a joined projection apart as the module says that it is joined."""
    sizes = getattr(module, "output_partition_sizes", None)
    if sizes is None:
        raise LookupError(f"{type(module).__name__} does not say how it is joined (output_partition_sizes)")
    return list(matrix(tensor).split(list(sizes), -1))
