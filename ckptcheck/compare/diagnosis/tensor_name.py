"""Parses tensor names of Hugging Face and Megatron: layer, expert, part of the layer."""

from __future__ import annotations

import re
from functools import lru_cache

import msgspec

from ckptcheck.checkpoint.components import EMBEDDING, HEAD
from ckptcheck.checkpoint.layout import INDEX

PART_PATTERNS = {
    "q": re.compile(r"(^|\.)(q_proj|wq|query|query_proj)\.(weight|bias)$"),
    "k": re.compile(r"(^|\.)(k_proj|wk|key|key_proj)\.(weight|bias)$"),
    "v": re.compile(r"(^|\.)(v_proj|wv|value|value_proj)\.(weight|bias)$"),
    "qkv": re.compile(r"(^|\.)(linear_qkv|qkv_proj|query_key_value|W_pack|Wqkv)\.(weight|bias)$"),
    "gate": re.compile(r"(^|\.)(gate_proj|w1)\.(weight|bias)$"),
    "up": re.compile(r"(^|\.)(up_proj|w3)\.(weight|bias)$"),
    "gate_up": re.compile(r"(^|\.)(linear_fc1\.(weight|bias)\d*|gate_up_proj(\.(weight|bias))?|w13_(weight|bias))$"),
    "norm": re.compile(r"(norm[^.]{0,64}|\.ln_?\w{0,64})\.weight$|layer_norm_weight$", re.IGNORECASE),
    "vocabulary": re.compile(rf"({EMBEDDING.pattern})|({HEAD.pattern})|(^|\.)output_layer\.weight$"),
}
INTERLEAVED = re.compile(r"(^|\.)(linear_qkv|query_key_value)\.(weight|bias)$")
"""Fused Q, K and V in the order of Megatron: for each KV head its queries, its key, its value."""
EXPERT = re.compile(r"expert", re.IGNORECASE)
FUSED = (
    ("q_proj", "k_proj", "v_proj"),
    ("wq", "wk", "wv"),
    ("query_proj", "key_proj", "value_proj"),
    ("query", "key", "value"),
    ("gate_proj", "up_proj"),
    ("w1", "w3"),
)
"""The members of fused tensors, in their order."""


class TensorName(msgspec.Struct, frozen=True):
    """A parsed tensor name."""

    name: str
    # The name with {} for the layer and the expert.
    stem: str
    # A key of PART_PATTERNS, or "".
    part: str
    layer: int | None = None
    expert: int | None = None

    @property
    def label(self) -> str:
        """The stem within the layer: ``mlp.experts.{}.up_proj.weight``."""
        return self.stem.partition(".{}.")[2] if self.layer is not None else self.stem

    def with_numbers(self, layer: int | None, expert: int | None) -> str:
        """Return the name of the same tensor in another layer and expert."""
        text = self.stem
        for number in (layer, expert):
            if number is not None:
                text = text.replace("{}", str(number), 1)
        return text


@lru_cache(maxsize=1 << 16)
def parse_tensor_name(name: str) -> TensorName:
    """Parse a name. The first number is the layer; a number after a word that contains "expert" is the expert."""
    layer = expert = None
    stem, reached = "", 0
    for match in INDEX.finditer(name):
        before = name[: match.start()].split(".")
        if layer is None and expert is None and not EXPERT.search(".".join(before[-3:])):
            layer = int(match[1])
        elif expert is None and layer is not None and EXPERT.search(".".join(before[-3:])):
            expert = int(match[1])
        else:
            continue
        stem += name[reached : match.start()] + "{}"
        reached = match.end()
    stem += name[reached:]
    if layer is not None and expert is None and (grouped := re.search(r"(?<=\.weight)\d+$", stem)):
        # Transformer Engine's grouped experts: linear_fc1.weight3
        expert = int(grouped[0])
        stem = stem[: grouped.start()] + "{}"
    bare = name.rstrip("0123456789") if expert is not None else name
    part = next((part for part, pattern in PART_PATTERNS.items() if pattern.search(bare)), "")
    return TensorName(name, stem, part, layer, expert)


def list_fused_members(name: str) -> tuple[str, ...]:
    """Return the names of all members of a fused tensor, in its order, from that of one: q, k and v, or gate and up."""
    module, _, kind = name.rpartition(".")
    parent, mark, word = module.rpartition(".")
    members = next((members for members in FUSED if word in members and kind in ("weight", "bias")), ())
    return tuple(f"{parent}{mark}{member}.{kind}" for member in members)
