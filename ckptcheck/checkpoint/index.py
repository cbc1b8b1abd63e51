"""The index of a sharded checkpoint: ``{"metadata": {"total_size": …}, "weight_map": {tensor: shard file}}``."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import cached_property
from typing import Any, Generic, Literal, TypeVar

import msgspec
from msgspec import structs

from ckptcheck.checkpoint.document import Defect, parse_object
from ckptcheck.checkpoint.source import Source, read_document

MODEL_INDEX = "model.safetensors.index.json"
MAX_INDEX = 1 << 29
"""Longest index that is read, in bytes; one of a million tensors has about 100 MB."""


File = TypeVar("File")


class _Plain(msgspec.Struct, Generic[File]):
    weight_map: dict[str, File]
    metadata: dict[str, Any] = {}


_DECODER = msgspec.json.Decoder(_Plain[str])


class Index(msgspec.Struct, frozen=True, dict=True):
    """The index of a sharded checkpoint."""

    file: str
    weight_map: Mapping[str, str] = {}
    """Tensor → name of the file that holds it."""
    metadata: dict[str, Any] = {}
    """The `metadata` object, such as total_size (bytes)."""
    defects: tuple[Defect, ...] = ()
    readable: bool = False
    """Whether the file holds a weight_map with at least one usable entry."""

    @cached_property
    def shards(self) -> tuple[str, ...]:
        """The files that the index names, sorted."""
        return tuple(sorted(set(self.weight_map.values())))

    def use_headers(self, weight_map: Mapping[str, str]) -> None:
        """Forget the names, which headers hold too: they take 150 bytes a tensor. weight_map: one equal to its own."""
        structs.force_setattr(self, "weight_map", weight_map)


def find_index_file(files: Collection[str]) -> str | None:
    """Return the standard index, else the only index in the folder, else None.

    Beside a model.safetensors no loader reads an index of another name (Mistral's, a `variant`'s), so that is not the model's.
    """
    indexes = [name for name in files if name.endswith(".safetensors.index.json")]
    if MODEL_INDEX in indexes:
        return MODEL_INDEX
    return indexes[0] if len(indexes) == 1 and "model.safetensors" not in files else None


def escapes_folder(name: str) -> bool:
    """Whether a file name from an index is not the plain name of a file in the same folder."""
    return not name or name in (".", "..") or any(sign in name for sign in ("/", "\\", "\0"))


def read_index(source: Source, file: str) -> Index:
    """Read an index; a malformed one has defects and is not readable. Raises OSError if the file cannot be read."""
    size = source.files[file].size
    if size > MAX_INDEX:
        return Index(file, defects=(Defect("malformed-index", f"it has {size:,} bytes; no index is that long"),))
    shards = tuple(name for name in source.files if name.endswith(".safetensors") and name.isascii())
    return parse_index(file, read_document(source, file, size), shards)


def parse_index(file: str, raw: bytes, shards: tuple[str, ...] = ()) -> Index:
    """Parse an index.

    msgspec parses the ordinary form. It does not see duplicate keys, so a count of quotation marks must confirm that there
    are none.

    shards: the files that it probably names; their names are then kept once, and not once for each tensor.
    """
    if b"\\" not in raw:
        for decoder in (_expect(shards), _DECODER) if shards else (_DECODER,):
            try:
                plain = decoder.decode(raw)
            except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
                continue
            quotes = 4 * len(plain.weight_map) + 4 + 2 * len(plain.metadata)
            if plain.weight_map and plain.metadata and raw.count(b'"') == quotes:
                return Index(file, plain.weight_map, plain.metadata, readable=True)
    return _slow(file, raw)


def _expect(shards: tuple[str, ...]) -> msgspec.json.Decoder[_Plain[str]]:
    names: Any = Literal.__getitem__(shards)
    return msgspec.json.Decoder(_Plain[names])


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
    not_names = [name for name, shard in weight_map.items() if not isinstance(shard, str)]
    defects += [
        Defect("malformed-index", "its place is not the name of a file", f"weight_map.{name}") for name in not_names
    ]
    metadata = value.get("metadata", {})
    if "metadata" not in value:
        # transformers reads index["metadata"] before any tensor
        defects.append(
            Defect("malformed-index", "it has no metadata, and transformers stops with a KeyError", "metadata")
        )
    if not isinstance(metadata, dict):
        defects.append(Defect("malformed-index", "its metadata is no object", "metadata"))
        metadata = {}
    places = {name: shard for name, shard in weight_map.items() if isinstance(shard, str)}
    return Index(file, places, metadata, tuple(defects), readable=bool(places))
