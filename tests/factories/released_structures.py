"""Structures of released models (tests/data/structures): expands one, and writes it as a checkpoint that takes no disk.

Each shard has a real header and is then extended to its full size without writing a byte: a model of 1 TB is a few MB.
"""

from __future__ import annotations

import itertools
import json
import re
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any

from tests.paths import DATA

FOLDER = DATA / "structures"
RANGES = re.compile(r"\{([0-9,-]+)\}")
BITS = {"F64": 64, "I64": 64, "F32": 32, "I32": 32, "BF16": 16, "F16": 16, "I16": 16}
"""dtype → bits of an element; 8 for the others."""

Entry = tuple[str, tuple[int, ...]]
"""dtype and shape."""


@dataclass(frozen=True)
class Structure:
    """The facts about one released model: no weights."""

    model: str
    """Its name on the Hub: org/name."""
    source: str
    """Where the facts are from."""
    config: dict[str, Any]
    """config.json."""
    tensors: list[tuple[str, str, list[int]]]
    """Rows of a name (``{0-79}`` stands for each number), a dtype and a shape."""
    shards: int = 1
    """The number of files that the weights are in."""
    files: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Further JSON files: name → content."""
    learned: dict[str, Any] = field(default_factory=dict)
    """How fixtures/learn_structures.py took the tensors from the config; empty where a published index names them."""

    @cached_property
    def entries(self) -> dict[str, Entry]:
        """Every tensor: name → dtype and shape."""
        return {name: (dtype, tuple(shape)) for row, dtype, shape in self.tensors for name in expand(row)}


def read_structure(path: Path) -> Structure:
    """Read a structure. Raises TypeError for a key that a structure does not have."""
    return Structure(**json.loads(path.read_text(encoding="utf-8")))


def list_structures() -> list[str]:
    """Return the names of the stored structures, sorted: ``org--name``."""
    return sorted(path.stem for path in FOLDER.glob("*.json"))


def load_structure(name: str) -> Structure:
    """Load a stored structure by its name."""
    return read_structure(FOLDER / f"{name}.json")


def expand(template: str) -> list[str]:
    """Return the names that a template stands for.

    >>> expand("h.{0-1,3}.w")
    ['h.0.w', 'h.1.w', 'h.3.w']
    """
    parts = RANGES.split(template)
    choices = [[text] if place % 2 == 0 else _list_numbers(text) for place, text in enumerate(parts)]
    return ["".join(chosen) for chosen in itertools.product(*choices)]


def write_checkpoint(structure: Structure, folder: Path, entries: dict[str, Entry] | None = None) -> Path:
    """Write a structure as a checkpoint of sparse files of full size, and return its folder.

    entries: the tensors to write in place of its own.
    """
    folder.mkdir(parents=True, exist_ok=True)
    files = {"config.json": structure.config, **structure.files}
    entries = structure.entries if entries is None else entries
    if structure.shards == 1:
        write_shard(folder / "model.safetensors", entries)
    else:
        total = sum(count_bytes(entry) for entry in entries.values())
        shards: list[dict[str, Entry]] = [{}]
        reached = 0
        for name in sorted(entries, key=_order):
            if reached >= total * len(shards) / structure.shards and len(shards) < structure.shards:
                shards.append({})
            shards[-1][name] = entries[name]
            reached += count_bytes(entries[name])
        names = [f"model-{number:05}-of-{len(shards):05}.safetensors" for number in range(1, len(shards) + 1)]
        for file, shard in zip(names, shards, strict=True):
            write_shard(folder / file, shard)
        places = {name: file for file, shard in zip(names, shards, strict=True) for name in shard}
        files["model.safetensors.index.json"] = {"metadata": {"total_size": total}, "weight_map": places}
    for file, content in files.items():
        (folder / file).write_text(json.dumps(content), encoding="utf-8")
    return folder


def _list_numbers(ranges: str) -> list[str]:
    """Return the numbers of ``0-2,5``."""
    bounds = [part.partition("-") for part in ranges.split(",")]
    return [str(number) for first, _, last in bounds for number in range(int(first), int(last or first) + 1)]


def _order(name: str) -> tuple[Any, ...]:
    """Return what sorts tensors as files store them: layer after layer."""
    return tuple((1, int(part), "") if part.isdigit() else (0, 0, part) for part in name.split("."))


def count_bytes(entry: Entry) -> int:
    """Return the bytes of a tensor's data."""
    dtype, shape = entry
    return prod(shape) * BITS.get(dtype, 8) // 8


def write_shard(path: Path, entries: dict[str, Entry]) -> None:
    """Write a shard whose data takes no disk."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    reached = 0
    for name, (dtype, shape) in sorted(entries.items(), key=lambda item: -BITS.get(item[1][0], 8)):
        end = reached + count_bytes((dtype, shape))
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [reached, end]}
        reached = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + reached)
