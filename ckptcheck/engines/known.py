"""Versions of engines that are known to serve wrong weights after an update: data (known.toml), and which of it fits an engine."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from ckptcheck.engines.base import EngineInfo, Manifest

DATA = Path(__file__).with_name("known.toml")
KINDS = {"I8": "int8", "F8_E4M3": "fp8", "F8_E4M3FNUZ": "fp8"}
"""dtype of a weight → trait."""
ENDS = {"_packed": "int4", ".azp_adj": "int8"}
"""End of a name → trait, where the weight itself is elsewhere: vLLM's CPU build hands INT8 weights to oneDNN, and keeps this."""
METHODS = {"int4": "int4", "wna16": "int4", "int8": "int8", "fp8": "fp8"}
"""Part of the name of a method by which an engine loads → trait."""
HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"
EXPERTS = re.compile(r"(?i:moe)|Mixtral|Deepseek")
"""Architectures with experts, where only the name is known."""


@dataclass(frozen=True)
class Running:
    """An engine that runs, as far as it is known; "" for what it does not say. traits: see known.toml; where: its address."""

    engine: str
    version: str
    architecture: str = ""
    traits: frozenset[str] = frozenset()
    where: str = ""


class Known(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One fault; see known.toml for what its fields say."""

    engine: str
    what: str
    seen: str
    instead: str
    since: str = ""
    until: str = ""
    traits: frozenset[str] = frozenset()
    architecture: str = ""

    def concerns(self, running: Running) -> bool:
        """Whether it is about this engine. A condition on what the engine does not say is not met."""
        return (
            running.engine == self.engine
            and self._spans(running.version)
            and self.traits <= running.traits
            and (not self.architecture or re.search(self.architecture, running.architecture) is not None)
        )

    def _spans(self, version: str) -> bool:
        numbers = _numbers(version)
        if not numbers:
            return False
        first, last = _numbers(self.since), _numbers(self.until)
        return (not first or numbers >= first) and (not last or numbers[: len(last)] <= last)


@functools.cache
def known() -> tuple[Known, ...]:
    """Read what comes with ckptcheck."""
    return tuple(msgspec.toml.decode(DATA.read_bytes(), type=dict[str, list[Known]])["known"])


def traits(info: EngineInfo, manifest: Manifest) -> frozenset[str]:
    """Say of an engine of ours what decides whether a fault shows: its device, mode, and the kinds of weights that it holds."""
    found = {info.facts.get("device", ""), info.facts.get("mode", "")}
    places = {name: entry.place for (rank, name), entry in manifest.items() if not rank}
    if HEAD in places and EMBEDDING in places and places[HEAD] and places[HEAD] == places[EMBEDDING]:
        found.add("tied")
    weights = [(name, entry.dtype) for (_, name), entry in manifest.items() if entry.kind == "parameter"]
    if any(name.startswith("draft") for name, _ in weights):
        found.add("draft")
    found |= traits_of(weights)
    return frozenset(found - {""})


def traits_of(weights: Iterable[tuple[str, str]]) -> frozenset[str]:
    """Say of weights, by name and dtype as safetensors spells it ("" where it is not known), in which form they are."""
    found: set[str] = set()
    for name, dtype in weights:
        if kind := KINDS.get(dtype) or next((kind for end, kind in ENDS.items() if name.endswith(end)), ""):
            found |= {kind, "experts" if ".experts" in name else "dense"}
        elif ".experts." in name:
            found.add("experts")
    return frozenset(found)


def traits_told(
    told: Iterable[str], architecture: str, quantization: str = "", names: Iterable[str] = ()
) -> frozenset[str]:
    """Say the same of a server by what it tells of itself.

    told: its device, and ``draft`` where it has such a model. quantization: the method it loads with. names: of its weights.
    """
    experts = bool(EXPERTS.search(architecture))
    method = next((kind for word, kind in METHODS.items() if word in quantization), "")
    found = {*told, "stock", "experts" if experts else "", method, "dense" if method and not experts else ""}
    return frozenset(found - {""}) | traits_of((name, "") for name in names)


def _numbers(version: str) -> tuple[int, ...]:
    """Return the leading numbers of a version: a development version counts as the one before which it comes."""
    found = re.match(r"\d{1,9}(\.\d{1,9})*", version)
    return tuple(map(int, found[0].split("."))) if found else ()
