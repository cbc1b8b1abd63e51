"""Sets of numbered shards: ``model-00002-of-00003.safetensors``."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Mapping
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from ckptcheck.checkpoint.header import Shard

ORDINAL = re.compile(r"(?P<stem>.*?)-?(?P<number>\d{1,6})-of-(?P<total>\d{1,6})\.safetensors")
"""The name of a numbered shard."""
VARIANT = re.compile(r"(?P<stem>[\w-]+)\.[A-Za-z]\w*(-\d{1,6}-of-\d{1,6})?\.safetensors")
"""The name of a file that transformers and diffusers load if a variant is requested: ``model.fp16.safetensors``."""


def is_variant_of(name: str, other: str) -> bool:
    """Whether one file is a variant of the model that another file holds, whole or as a shard.

    >>> is_variant_of("model.fp16.safetensors", "model.safetensors"), is_variant_of("model-4bit.safetensors", "model.safetensors")
    (True, False)
    """
    found = VARIANT.fullmatch(name)
    return (
        found is not None
        and re.fullmatch(rf"{found['stem']}(-\d{{1,6}}-of-\d{{1,6}})?\.safetensors", other) is not None
    )


class ShardSet(msgspec.Struct, frozen=True):
    """A set of numbered shards: ``stem-00002-of-00003.safetensors``."""

    stem: str
    """The part of the names in front of the numbers."""
    total: int
    """The number of shards that the names announce."""
    files: dict[int, str]
    """Shard number → file name, for the shards in the folder."""

    @property
    def expected(self) -> range:
        """The numbers of a complete set; they start at 0 if this set has a shard 0, else at 1."""
        return range(self.total) if 0 in self.files else range(1, self.total + 1)

    @property
    def missing(self) -> list[int]:
        """The numbers of a complete set that no file in the folder has."""
        return [number for number in self.expected if number not in self.files]

    def name(self, number: int) -> str:
        """Return the name of the shard with this number, formatted like the other names of the set."""
        pattern = re.compile(r"(?<!\d)\d{1,6}(?=-of-\d{1,6}\.safetensors$)")
        return pattern.sub(lambda match: f"{number:0{len(match[0])}}", next(iter(self.files.values())))


def find_shard_sets(names: Iterable[str]) -> tuple[ShardSet, ...]:
    """Group the numbered shards among these files into sets."""
    sets: dict[tuple[str, str], dict[int, str]] = {}
    for name in names:
        if match := ORDINAL.fullmatch(name):
            sets.setdefault((match["stem"], match["total"]), {})[int(match["number"])] = name
    return tuple(ShardSet(stem, int(total), files) for (stem, total), files in sorted(sets.items()))


def select_files_without_index(files: Iterable[str], *, is_adapter: bool) -> tuple[str, ...]:
    """Select the files that make up a model without index: model.safetensors, else the numbered shards, else all."""
    names = [name for name in files if name.endswith(".safetensors")]
    if "model.safetensors" in names:
        return ("model.safetensors",)
    if "adapter_model.safetensors" in names and is_adapter:
        return ("adapter_model.safetensors",)
    own = [name for name in names if not name.startswith(("consolidated", "adapter_"))]
    return tuple([name for name in own if ORDINAL.fullmatch(name)] or own or names)


def select_globbed_files(names: Iterable[str], shards: Mapping[str, Shard], loaded: Container[str]) -> tuple[str, ...]:
    """Select the readable files that vLLM and SGLang load whole: the ones that the index names, else all of the folder.

    Both engines drop Mistral's consolidated files where there are others, and load adapters separately.
    """
    return tuple(
        name
        for name in names
        if name in shards
        and shards[name].readable
        and not name.startswith("adapter_")
        and (name in loaded or not name.startswith("consolidated"))
    )
