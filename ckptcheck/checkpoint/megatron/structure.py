"""Derives the layers and experts of a Megatron model from the names of its weights, and reads its arguments."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from math import prod
from typing import Any

import msgspec

LAYER = re.compile(r"^(?:language_model\.)?(?:decoder|encoder|transformer)\.layers\.([0-9]{1,6})\.(.+)$")
MTP = re.compile(r"^mtp\.layers\.([0-9]{1,6})\.")
EXPERT = re.compile(r"\bexperts\.local_experts\.([0-9]{1,6})\.(.+)$")
OBJECT = re.compile(r"^(.*)/shard_(\d+(?:\.\d+)*)_([0-9]{1,7}(?:\.[0-9]{1,7})*)$")
EMBEDDING = "embedding.word_embeddings.weight"
OUTPUT = "output_layer.weight"
FINAL_NORM = "decoder.final_layernorm.weight"
VALUE_HEADS = ("value_head.weight", "v_head.weight", "v_head.summary.weight")
MAX_SHARDS = 1 << 20
"""Most shards of incomplete objects that are listed: a few bytes in a table of contents may declare any number."""


class Structure(msgspec.Struct):
    """The layers and experts of a model."""

    layers: dict[int, set[str]] = msgspec.field(default_factory=dict)
    """Layer number → names within the layer, without the experts'."""
    experts: dict[int, set[int]] = msgspec.field(default_factory=dict)
    """Layer number → the numbers of its experts."""
    parts: dict[int, dict[str, set[int]]] = msgspec.field(default_factory=dict)
    """Layer number → name within an expert → the experts that have it."""
    mtp: set[int] = msgspec.field(default_factory=set)
    """Numbers of the layers of multi-token prediction."""


def structure_of(names: Iterable[str]) -> Structure:
    """Derive the structure from the names of weights."""
    structure = Structure()
    for name in names:
        if match := LAYER.match(name):
            number, rest = int(match[1]), match[2]
            layer = structure.layers.setdefault(number, set())
            if expert := EXPERT.search(rest):
                structure.experts.setdefault(number, set()).add(int(expert[1]))
                structure.parts.setdefault(number, {}).setdefault(expert[2], set()).add(int(expert[1]))
            else:
                layer.add(rest)
        elif match := MTP.match(name):
            structure.mtp.add(int(match[1]))
    return structure


def positive_argument(arguments: Mapping[str, Any], name: str) -> int | None:
    """Return an argument that is a positive integer (at most 2^20), else None."""
    value = arguments.get(name)
    return value if type(value) is int and 0 < value <= 1 << 20 else None


def has_sharded_objects(keys: Iterable[str]) -> bool:
    """Whether a table of contents lists objects in the form that only megatron-core writes (``KEY/shard_0.1_2.4``)."""
    return any(OBJECT.match(key) for key in keys)


def missing_objects(keys: Iterable[str]) -> dict[str, tuple[int, list[str]]]:
    """Map each incomplete object to the number of its shards and the shards that are missing.

    Megatron writes an object that is sharded over a grid as ``KEY/shard_0.1_2.4``: the shard's position and the grid's size.
    """
    shards: dict[tuple[str, str], set[str]] = {}
    for key in keys:
        if match := OBJECT.match(key):
            shards.setdefault((match[1], match[3]), set()).add(match[2])
    missing: dict[str, tuple[int, list[str]]] = {}
    left = MAX_SHARDS
    for (base, grid), present in shards.items():
        sizes = [int(number) for number in grid.split(".")]
        total = prod(sizes)
        if len(present) >= total or total > left:
            continue
        left -= total
        places = [""]
        for size in sizes:
            places = [f"{place}.{number}" if place else str(number) for place in places for number in range(size)]
        missing[base] = total, [place for place in places if place not in present]
    return missing
