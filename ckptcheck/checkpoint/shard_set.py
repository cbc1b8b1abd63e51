"""Sets of numbered shards: ``model-00002-of-00003.safetensors``."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ckptcheck.checkpoint.header import Shard

ORDINAL = re.compile(r"(?P<stem>.*?)-?(?P<number>\d{1,6})-of-(?P<total>\d{1,6})\.safetensors")
"""The name of a numbered shard."""


@dataclass(frozen=True)
class Family:
    """A set of numbered shards: ``stem-00002-of-00003.safetensors``. files: number → name."""

    stem: str
    total: int
    files: dict[int, str]

    @property
    def expected(self) -> range:
        """The numbers that a whole set has, counted from 0 if this one has a 0."""
        return range(self.total) if 0 in self.files else range(1, self.total + 1)

    def name(self, number: int) -> str:
        """Write the name of a shard of this set as the others are written."""
        pattern = re.compile(r"\d+(?=-of-\d+\.safetensors$)")
        return pattern.sub(lambda found: f"{number:0{len(found[0])}}", next(iter(self.files.values())))


def families_of(names: Iterable[str]) -> tuple[Family, ...]:
    """Return the sets of numbered shards among these files."""
    found: dict[tuple[str, str], dict[int, str]] = {}
    for name in names:
        if match := ORDINAL.fullmatch(name):
            found.setdefault((match["stem"], match["total"]), {})[int(match["number"])] = name
    return tuple(Family(stem, int(total), files) for (stem, total), files in sorted(found.items()))


def chosen_without_index(files: Iterable[str], *, is_adapter: bool) -> tuple[str, ...]:
    """Return the files that make up the model where no index says so: model.safetensors, the numbered shards, or all."""
    names = [name for name in files if name.endswith(".safetensors")]
    if "model.safetensors" in names:
        return ("model.safetensors",)
    if "adapter_model.safetensors" in names and is_adapter:
        return ("adapter_model.safetensors",)
    own = [name for name in names if not name.startswith(("consolidated", "adapter_"))]
    return tuple([name for name in own if ORDINAL.fullmatch(name)] or own or names)


def globbed_among(names: Iterable[str], shards: Mapping[str, Shard], loaded: Container[str]) -> tuple[str, ...]:
    """Return the files whose every tensor vLLM and SGLang load: those of the index, without one all of the folder.

    Both drop Mistral's consolidated files where others are there, and adapters are loaded apart.
    """
    return tuple(
        name
        for name in names
        if name in shards
        and shards[name].readable
        and not name.startswith("adapter_")
        and (name in loaded or not name.startswith("consolidated"))
    )
