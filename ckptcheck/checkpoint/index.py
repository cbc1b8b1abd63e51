"""The index of a sharded checkpoint: ``{"metadata": {"total_size": …}, "weight_map": {tensor: shard file}}``."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import msgspec

from ckptcheck.checkpoint.document import Defect, parse_object
from ckptcheck.checkpoint.source import Source

MODEL_INDEX = "model.safetensors.index.json"
MAX_INDEX = 1 << 29
"""Longest index that is read, in bytes; one of a million tensors has about 100 MB."""


class _Plain(msgspec.Struct):
    weight_map: dict[str, str]
    metadata: dict[str, Any] = {}


_DECODER = msgspec.json.Decoder(_Plain)


@dataclass(frozen=True)
class Index:
    """weight_map: tensor → file name. metadata: what stands beside it, such as total_size (bytes)."""

    file: str
    weight_map: dict[str, str] = field(default_factory=dict, repr=False)
    metadata: dict[str, Any] = field(default_factory=dict)
    defects: tuple[Defect, ...] = ()
    readable: bool = False

    @cached_property
    def shards(self) -> tuple[str, ...]:
        """The files that the index names, sorted."""
        return tuple(sorted(set(self.weight_map.values())))


def index_among(files: Collection[str]) -> str | None:
    """Return the standard index, or the only one there is.

    Where there is a model.safetensors no loader asks an index of another name (Mistral's, a `variant`'s): it is not the model's.
    """
    found = [name for name in files if name.endswith(".safetensors.index.json")]
    if MODEL_INDEX in found:
        return MODEL_INDEX
    return found[0] if len(found) == 1 and "model.safetensors" not in files else None


def leaves_folder(name: str) -> bool:
    """Whether a file name from an index is anything but the plain name of a file in the same folder."""
    return not name or name in (".", "..") or any(sign in name for sign in ("/", "\\", "\0"))


def read_index(source: Source, file: str) -> Index:
    """Read an index; a malformed one comes back unreadable with its defects. Raises OSError if it cannot be read."""
    size = source.files[file].size
    if size > MAX_INDEX:
        return Index(file, defects=(Defect("malformed-index", f"it has {size:,} bytes; no index is that long"),))
    return parse_index(file, source.read(file, 0, size))


def parse_index(file: str, raw: bytes) -> Index:
    """Parse an index. The plain form goes the fast way, which cannot see a key that stands twice, so it counts."""
    if b"\\" not in raw:
        try:
            plain = _DECODER.decode(raw)
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
            pass
        else:
            quotes = 4 * len(plain.weight_map) + 4 + 2 * len(plain.metadata)
            if plain.weight_map and plain.metadata and raw.count(b'"') == quotes:
                return Index(file, plain.weight_map, plain.metadata, readable=True)
    return _slow(file, raw)


def _slow(file: str, raw: bytes) -> Index:
    value, defects = parse_object(raw)
    if value is None:
        return Index(file, defects=tuple(defects))
    weight_map = value.get("weight_map")
    if not isinstance(weight_map, dict):
        text = "it has no weight_map" if weight_map is None else "its weight_map is no object"
        return Index(file, defects=(*defects, Defect("malformed-index", text, "weight_map")))
    if not weight_map:
        defects.append(Defect("malformed-index", "its weight_map is empty", "weight_map"))
    odd = [name for name, shard in weight_map.items() if not isinstance(shard, str)]
    defects += [Defect("malformed-index", "its place is not the name of a file", f"weight_map.{name}") for name in odd]
    metadata = value.get("metadata", {})
    if not isinstance(metadata, dict):
        defects.append(Defect("malformed-index", "its metadata is no object", "metadata"))
        metadata = {}
    places = {name: shard for name, shard in weight_map.items() if isinstance(shard, str)}
    return Index(file, places, metadata, tuple(defects), readable=bool(places))
