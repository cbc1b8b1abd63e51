"""Versions of engines that are known to update weights wrongly: data (known.toml), and which of it fits an engine."""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ckptcheck.engines.base import EngineInfo, Manifest

FILE = Path(__file__).with_name("known.toml")
KINDS = {"I8": "int8", "F8_E4M3": "fp8", "F8_E4M3FNUZ": "fp8"}
"""dtype of a weight → trait."""
ENDS = {"_packed": "int4", ".azp_adj": "int8"}
"""End of a name → trait, where the weight itself is elsewhere: vLLM's CPU build hands INT8 weights to oneDNN, and keeps this."""
HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"


@dataclass(frozen=True)
class Known:
    """One fault; see known.toml for what its fields say."""

    engine: str
    since: str
    until: str | None
    traits: frozenset[str]
    what: str
    issues: tuple[str, ...]
    instead: str

    def fits(self, engine: str, version: str, traits: Collection[str]) -> bool:
        """Say whether an engine of this version, of which these traits hold, has it."""
        seen = numbers(version)
        last = self.until is None or seen <= numbers(self.until)
        return engine == self.engine and numbers(self.since) <= seen and last and self.traits <= set(traits)


@functools.cache
def table() -> tuple[Known, ...]:
    """Return all that is known."""
    entries: list[dict[str, Any]] = tomllib.loads(FILE.read_text(encoding="utf-8"))["known"]
    return tuple(
        Known(
            entry["engine"],
            entry["from"],
            entry.get("to"),
            frozenset(entry["traits"]),
            entry["what"],
            tuple(entry["issues"]),
            entry["instead"],
        )
        for entry in entries
    )


def faults(engine: str, version: str, traits: Collection[str]) -> tuple[Known, ...]:
    """Return what is known of an engine. engine: its name. version: its own word; what is no number in it counts as 0."""
    return tuple(known for known in table() if known.fits(engine, version, traits))


def traits(info: EngineInfo, manifest: Manifest) -> frozenset[str]:
    """Say of an engine what decides whether a fault shows: its device, mode, and the kinds of weights that it holds."""
    found = {info.facts.get("device", ""), info.facts.get("mode", "")}
    places = {name: entry.place for (rank, name), entry in manifest.items() if not rank}
    if HEAD in places and EMBEDDING in places and places[HEAD] and places[HEAD] == places[EMBEDDING]:
        found.add("tied")
    for (_, name), entry in manifest.items():
        if entry.kind != "parameter":
            continue
        if name.startswith("draft"):
            found.add("draft")
        if kind := KINDS.get(entry.dtype) or next((kind for end, kind in ENDS.items() if name.endswith(end)), ""):
            found |= {kind, "experts" if ".experts" in name else "dense"}
        elif ".experts." in name:
            found.add("experts")
    return frozenset(found - {""})


def numbers(version: str) -> tuple[int, ...]:
    """Return a version as numbers.

    >>> numbers("0.5.17"), numbers("0.10.post1"), numbers("dev")
    ((0, 5, 17), (0, 10, 0), (0,))
    """
    return tuple(int(part) if part.isdecimal() else 0 for part in version.partition("+")[0].split("."))
