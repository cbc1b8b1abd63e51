"""Engine versions that are known to serve wrong weights after an update (known_issues.toml), matched against an engine."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from ckptcheck.live.runtime.engines.base import EngineInfo, TensorDigests

DATA = Path(__file__).with_name("known_issues.toml")
KINDS = {"I8": "int8", "F8_E4M3": "fp8", "F8_E4M3FNUZ": "fp8"}
"""dtype of a weight → trait."""
SUFFIXES = {"_packed": "int4", ".azp_adj": "int8"}
"""Suffix of a name → trait, for weights that are not parameters: vLLM's CPU build packs INT8 weights for oneDNN and
keeps this tensor."""
METHODS = {"int4": "int4", "wna16": "int4", "int8": "int8", "fp8": "fp8"}
"""Part of the name of an engine's quantization method → trait."""
HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"
VISION = re.compile(r"(^|\.)(visual|vision_tower|vision_model|vision_encoder|vpm)\.")
"""Weights of a vision tower."""
EXPERTS = re.compile(r"(?i:moe)|Mixtral|Deepseek")
"""Architectures with experts, for servers that report only the architecture."""


@dataclass(frozen=True)
class EngineIdentity:
    """The facts that a running engine reports; "" for a missing fact."""

    engine: str
    version: str
    architecture: str = ""
    traits: frozenset[str] = frozenset()
    """See known_issues.toml."""
    address: str = ""


class KnownIssue(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One fault of an engine; known_issues.toml documents the fields."""

    engine: str
    what: str
    seen: str
    instead: str
    since: str = ""
    until: str = ""
    traits: frozenset[str] = frozenset()
    architecture: str = ""

    def applies_to(self, engine: EngineIdentity) -> bool:
        """Return whether the engine has this fault. A condition on a fact that the engine does not report is not met."""
        return (
            engine.engine == self.engine
            and self._covers_version(engine.version)
            and self.traits <= engine.traits
            and (not self.architecture or re.search(self.architecture, engine.architecture) is not None)
        )

    def _covers_version(self, version: str) -> bool:
        numbers = version_numbers(version)
        if not numbers:
            return False
        first, last = version_numbers(self.since), version_numbers(self.until)
        return (not first or numbers >= first) and (not last or numbers[: len(last)] <= last)


@functools.cache
def load_known_issues() -> tuple[KnownIssue, ...]:
    """Read the known issues that are part of ckptcheck."""
    return tuple(msgspec.toml.decode(DATA.read_bytes(), type=dict[str, list[KnownIssue]])["known"])


def detect_traits(info: EngineInfo, digests: TensorDigests) -> frozenset[str]:
    """Return the traits of an engine that ckptcheck started: its device, its mode, and the kinds of weights it holds."""
    traits = {info.facts.get("device", ""), info.facts.get("mode", "")}
    storages = {name: digest.storage for (rank, name), digest in digests.items() if not rank}
    if HEAD in storages and EMBEDDING in storages and storages[HEAD] and storages[HEAD] == storages[EMBEDDING]:
        traits.add("tied")
    weights = [(name, digest.dtype) for (_, name), digest in digests.items() if digest.kind == "parameter"]
    if any(name.startswith("draft") for name, _ in weights):
        traits.add("draft")
    traits |= traits_of_weights(weights)
    return frozenset(traits - {""})


def traits_of_weights(weights: Iterable[tuple[str, str]]) -> frozenset[str]:
    """Return the traits of weights given as (name, dtype as safetensors spells it, or "" if unknown)."""
    traits: set[str] = set()
    for name, dtype in weights:
        if kind := KINDS.get(dtype) or next((kind for suffix, kind in SUFFIXES.items() if name.endswith(suffix)), ""):
            traits |= {kind, "experts" if ".experts" in name else "dense"}
        elif ".experts." in name:
            traits.add("experts")
        if VISION.search(name):
            traits.add("vision")
    return frozenset(traits)


def traits_of_server(
    reported: Iterable[str], architecture: str, quantization: str = "", names: Iterable[str] = ()
) -> frozenset[str]:
    """Return the traits of a server from its reported facts.

    reported: its device, and ``draft`` if it has a draft model. quantization: the method it loads with. names: of its
    weights.
    """
    has_experts = bool(EXPERTS.search(architecture))
    method = next((kind for word, kind in METHODS.items() if word in quantization), "")
    dense = "dense" if method and not has_experts else ""
    traits = {*reported, "stock", "experts" if has_experts else "", method, dense}
    return frozenset(traits - {""}) | traits_of_weights((name, "") for name in names)


def version_numbers(version: str) -> tuple[int, ...]:
    """Return the leading numbers of a version: a development version counts as the release that it precedes."""
    match = re.match(r"\d{1,9}(\.\d{1,9})*", version)
    return tuple(map(int, match[0].split("."))) if match else ()
