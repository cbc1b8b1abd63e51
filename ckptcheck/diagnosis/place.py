"""What a tensor's name says: which layer, which expert, which part of the layer. Hugging Face's names and Megatron's."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from ckptcheck.checkpoint.anatomy import EMBEDDING, HEAD
from ckptcheck.checkpoint.layout import INDEX

PARTS = {
    "q": re.compile(r"(^|\.)(q_proj|wq|query|query_proj)\.(weight|bias)$"),
    "k": re.compile(r"(^|\.)(k_proj|wk|key|key_proj)\.(weight|bias)$"),
    "v": re.compile(r"(^|\.)(v_proj|wv|value|value_proj)\.(weight|bias)$"),
    "qkv": re.compile(r"(^|\.)(linear_qkv|qkv_proj|query_key_value|W_pack|Wqkv)\.(weight|bias)$"),
    "gate": re.compile(r"(^|\.)(gate_proj|w1)\.(weight|bias)$"),
    "up": re.compile(r"(^|\.)(up_proj|w3)\.(weight|bias)$"),
    "gate_up": re.compile(r"(^|\.)(linear_fc1\.(weight|bias)\d*|gate_up_proj(\.(weight|bias))?|w13_(weight|bias))$"),
    "norm": re.compile(r"(norm[^.]*|\.ln_?\w*)\.weight$|layer_norm_weight$", re.IGNORECASE),
    "vocabulary": re.compile(rf"({EMBEDDING.pattern})|({HEAD.pattern})|(^|\.)output_layer\.weight$"),
}
INTERLEAVED = re.compile(r"(^|\.)(linear_qkv|query_key_value)\.(weight|bias)$")
"""Fused Q, K and V in the order of Megatron: for each KV group its queries, its key, its value."""
EXPERT = re.compile(r"expert", re.IGNORECASE)
MATES = {"q": ("k", "v"), "gate": ("up",)}
SPELLED = {
    "k": (("q_proj", "k_proj"), ("wq", "wk"), ("query_proj", "key_proj"), ("query", "key")),
    "v": (("q_proj", "v_proj"), ("wq", "wv"), ("query_proj", "value_proj"), ("query", "value")),
    "up": (("gate_proj", "up_proj"), ("w1", "w3")),
}


@dataclass(frozen=True)
class Place:
    """Where a tensor stands. stem: the name with {} for the layer and the expert; part: a key of PARTS, or empty."""

    name: str
    stem: str
    part: str
    layer: int | None = None
    expert: int | None = None

    @property
    def label(self) -> str:
        """The stem within the layer: ``mlp.experts.{}.up_proj.weight``."""
        return self.stem.partition(".{}.")[2] if self.layer is not None else self.stem

    def elsewhere(self, layer: int | None, expert: int | None) -> str:
        """The name of the same thing in another layer and expert."""
        text = self.stem
        for number in (layer, expert):
            if number is not None:
                text = text.replace("{}", str(number), 1)
        return text


@lru_cache(maxsize=1 << 16)
def place_of(name: str) -> Place:
    """Take a name apart. The first number is the layer, one after a word with "expert" in it is the expert."""
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
        expert = int(grouped[0])  # Transformer Engine's grouped experts: linear_fc1.weight3
        stem = stem[: grouped.start()] + "{}"
    bare = name.rstrip("0123456789") if expert is not None else name
    part = next((part for part, pattern in PARTS.items() if pattern.search(bare)), "")
    return Place(name, stem, part, layer, expert)


def mates_of(place: Place) -> tuple[str, ...]:
    """The names that a fused tensor would hold beside this one, in its order: k and v of a q, up of a gate."""
    found = []
    for mate in MATES.get(place.part, ()):
        for ours, theirs in SPELLED[mate]:
            head, mark, tail = place.name.rpartition(f"{ours}.")
            if mark and (not head or head.endswith(".")):
                found.append(f"{head}{theirs}.{tail}")
                break
    return tuple(found)


def leader_of(place: Place) -> str | None:
    """The name of the q of a k or v, of the gate of an up."""
    if place.part not in SPELLED:
        return None
    for ours, theirs in SPELLED[place.part]:
        head, mark, tail = place.name.rpartition(f"{theirs}.")
        if mark and (not head or head.endswith(".")):
            return f"{head}{ours}.{tail}"
    return None
