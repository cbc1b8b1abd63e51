"""What the names of a Megatron model's weights say about it: layers, experts, heads; and what its arguments promise."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

LAYER = re.compile(r"^(?:language_model\.)?(?:decoder|encoder|transformer)\.layers\.(\d+)\.(.+)$")
MTP = re.compile(r"^mtp\.layers\.(\d+)\.")
EXPERT = re.compile(r"\bexperts\.local_experts\.(\d+)\.(.+)$")
OBJECT = re.compile(r"^(.*)/shard_(\d+(?:\.\d+)*)_(\d+(?:\.\d+)*)$")
EMBEDDING = "embedding.word_embeddings.weight"
OUTPUT = "output_layer.weight"
FINAL_NORM = "decoder.final_layernorm.weight"
VALUE_HEADS = ("value_head.weight", "v_head.weight", "v_head.summary.weight")
MAX_SHARDS = 1 << 20


@dataclass
class Structure:
    """layers: number → names within the layer, experts' left out. experts: layer → the experts it has. mtp: layer numbers.

    parts: layer → name within an expert → the experts that have it.
    """

    layers: dict[int, set[str]] = field(default_factory=dict)
    experts: dict[int, set[int]] = field(default_factory=dict)
    parts: dict[int, dict[str, set[int]]] = field(default_factory=dict)
    mtp: set[int] = field(default_factory=set)


def structure_of(names: Iterable[str]) -> Structure:
    """Read the structure off the names of weights."""
    found = Structure()
    for name in names:
        if match := LAYER.match(name):
            number, rest = int(match[1]), match[2]
            layer = found.layers.setdefault(number, set())
            if expert := EXPERT.search(rest):
                found.experts.setdefault(number, set()).add(int(expert[1]))
                found.parts.setdefault(number, {}).setdefault(expert[2], set()).add(int(expert[1]))
            else:
                layer.add(rest)
        elif match := MTP.match(name):
            found.mtp.add(int(match[1]))
    return found


def promised(arguments: Mapping[str, Any], name: str) -> int | None:
    """Return a positive integer that the arguments give, else None."""
    value = arguments.get(name)
    return value if type(value) is int and 0 < value <= 1 << 20 else None


def has_sharded_objects(keys: Iterable[str]) -> bool:
    """Whether a table of contents lists objects as only megatron-core writes them (``KEY/shard_0.1_2.4``)."""
    return any(OBJECT.match(key) for key in keys)


def missing_objects(keys: Iterable[str]) -> dict[str, tuple[int, list[str]]]:
    """Return object → of how many shards it has to be, and those that are missing; complete ones are left out.

    Megatron writes an object that is sharded over a grid as ``KEY/shard_0.1_2.4``: the shard's place and the grid's size.
    """
    found: dict[tuple[str, str], set[str]] = {}
    for key in keys:
        if match := OBJECT.match(key):
            found.setdefault((match[1], match[3]), set()).add(match[2])
    missing: dict[str, tuple[int, list[str]]] = {}
    for (base, grid), there in found.items():
        sizes = [int(number) for number in grid.split(".")]
        total = prod(sizes)
        if len(there) >= total or total > MAX_SHARDS:
            continue
        places = [""]
        for size in sizes:
            places = [f"{place}.{number}" if place else str(number) for place in places for number in range(size)]
        missing[base] = total, [place for place in places if place not in there]
    return missing
