"""Which parameters transformers fills from a checkpoint, and under which stored names it looks for them.

fixtures/learn_parameters.py generates the table from transformers, with one line for each architecture. Parameters have the names
of the built model: transformers maps older names to them by renamings, and a scan applies the same ones.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from ckptcheck.checkpoint.config import Config
from ckptcheck.checkpoint.layout import INDEX, Layout
from ckptcheck.checkpoint.resolved_config import ResolvedConfig

LONGEST_NAME = 400
"""Longest name on which renamings are tried: no model has longer ones."""
MOST_LOOKED_AT, MOST_MEMBERS = 256, 12
"""Names of one template that are looked at, and how many of them with different numbers within a layer are renamed."""
KNOWN_KINDS = (None, "GroupWeightRename")
Places = dict[str, set[int] | None]
"""Parameter, with {} for each number → the layers that have it stored; None for one that lies beside the layers."""


class Renaming(msgspec.Struct, frozen=True):
    """One step by which transformers turns a stored name into a parameter's."""

    pattern: re.Pattern[str]
    targets: tuple[str, ...]
    """Replacements for the matching part: one for each source in a group; all of them if the step converts."""
    scope: str | None
    """The module whose names are renamed; None for all names."""
    base: str
    converts: bool
    """Whether the step joins or splits tensors. transformers takes at most one such step for a name."""
    is_group: bool
    """Whether the group applies only if its first renaming matches a name."""

    def rename(self, name: str) -> tuple[str, ...]:
        """Return the names that a name becomes; () if the step does not match it."""
        prefix = ""
        if self.scope is not None:
            scope, base = (f"{part}." if part else "" for part in (self.scope, self.base))
            prefix = next((start for start in (base + scope, scope) if name.startswith(start)), "")
            if not prefix and scope:
                return ()
        rest = name[len(prefix) :]
        found = self.pattern.search(rest)
        if found is None:
            return ()
        which = next(group for group, text in found.groupdict().items() if text is not None)
        number = self.pattern.groupindex[which]
        targets = self.targets if not self.is_group else (self.targets[int(which[1:])],)
        return tuple(
            prefix + rest.replace(found[0], re.sub(r"\\(\d)", lambda one: found[number + int(one[1])] or "", target), 1)
            for target in (targets if self.converts else targets[:1])
        )


class LayerTypes(msgspec.Struct, frozen=True):
    """The parameters by which layers of each type differ, where a list in the config gives each layer its type."""

    path: str
    """The JSON path of the list."""
    prefix: str
    """The name in front of the layers' numbers."""
    own: Mapping[str, frozenset[str]]
    """Type → the parameters within a layer that only layers of this type have."""


@dataclass(frozen=True)
class ParametersTable:
    """The parameters of one architecture, as the built model names them; names have {} for each number."""

    architecture: str
    facts: Mapping[str, Any]
    """Its line of the table."""

    @staticmethod
    def of(config: Config | None) -> ParametersTable | None:
        """Return the table of a config's architecture; None if it was not learned, or if the repository's own code builds it."""
        if config is None or config.resolved is None or "auto_map" in config.value:
            return None
        architecture = config.architecture
        if architecture is None or architecture not in config.resolved.top.config_class.models:
            return None
        table = _find(architecture) or _find_relative(architecture)
        served = find_served(config)
        if table is not None and served is not None:
            table = ParametersTable(architecture, {**table.facts, "renames": served["renames"]})
        return table if table is not None and table.can_rename and not config.resolved.other_parts else None

    @property
    def can_rename(self) -> bool:
        """Whether a scan can apply every renaming of the architecture."""
        return all(found.get("kind") in KNOWN_KINDS for found in self.facts.get("renames", ()))

    @cached_property
    def needs(self) -> frozenset[str]:
        """The parameters that every model of this architecture has: outside the layers, or in each layer of a stack."""
        return frozenset(self.facts.get("needs", ()))

    def list_given(self, resolved: ResolvedConfig) -> frozenset[str]:
        """Return the parameters that a single setting of this config adds."""
        found: set[str] = set()
        for path, given in self.facts.get("given", {}).items():
            setting = resolved.at(path)
            value = setting.value if setting is not None else None
            is_number = given["on"] == "number" and type(value) is int and value > 0
            if is_number or (isinstance(value, bool) and value is given["on"]):
                found.update(given["needs"])
        return frozenset(found)

    @cached_property
    def untied(self) -> frozenset[str]:
        """The further parameters of a model whose config unties its embeddings."""
        return frozenset(self.facts.get("untied", ()))

    @cached_property
    def layer_types(self) -> tuple[LayerTypes, ...]:
        """The lists in the config that give layers types, with the parameters of each type."""
        return tuple(
            LayerTypes(path, found["prefix"], {kind: frozenset(names) for kind, names in found["own"].items()})
            for path, found in self.facts.get("kinds", {}).items()
        )

    @cached_property
    def renamings(self) -> tuple[Renaming, ...]:
        """The renamings of this architecture, then the ones that apply to all."""
        return tuple(_parse_renaming(found) for found in self.facts.get("renames", ())) + _legacy_renamings()

    def find_places(self, layout: Layout, stored: Iterable[str]) -> Places:
        """Return the parameters that the stored tensors fill.

        stored: a sample of the names as an unquantized model has them, see `list_samples`.
        """
        places: Places = {}
        for name, layers in stored_layers(layout, stored):
            for target in self.name_parameters(name):
                number = INDEX.search(target)
                if number is None:
                    places[target] = None
                    continue
                own = INDEX.search(name)
                here = layers if own is not None and own[1] == number[1] else {int(number[1])}
                pattern = INDEX.sub("{}", f"{target}.").removesuffix(".")
                known = places.setdefault(pattern, set())
                if known is not None:
                    known |= here
        return places

    def name_parameters(self, name: str) -> set[str]:
        """Return every name under which transformers may find a place for a stored one."""
        if len(name) > LONGEST_NAME:
            return set()
        renamed = name
        for step in self.renamings:
            if not step.converts:
                renamed = next(iter(step.rename(renamed)), renamed)
        found = (one for step in self.renamings if step.converts and (one := step.rename(renamed)))
        names = {name, *next(found, (renamed,))}
        base = self.facts.get("base")
        if base:
            names |= {f"{base}.{one}" for one in names} | {one.removeprefix(f"{base}.") for one in names}
        return names


def find_served(config: Config) -> dict[str, Any] | None:
    """Return how transformers loads a model type with the class of another type and renamings for it; None for all others.

    It loads EXAONE as a Llama whose stored names are `transformer.h…`, so what was learned of Llama's stored names does not
    hold for such a checkpoint.
    """
    types: dict[str, dict[str, Any]] = _parse_line("served") or {}
    served = types.get(str(config.model_type))
    return served if served is not None and config.architecture in served["classes"] else None


def stored_layers(layout: Layout, stored: Iterable[str]) -> Iterator[tuple[str, set[int]]]:
    """Yield the sampled names with the layers that have such a tensor; an empty set for tensors outside the layers."""
    of: dict[tuple[str, str], set[int]] = {}
    for prefix, stack in layout.stacks.items():
        for layer, names in stack.layers.items():
            for rest in names:
                of.setdefault((prefix, rest), set()).add(layer)
    for name in stored:
        parts = INDEX.split(name, 1)
        if len(parts) == 1:
            yield name, set()
        else:
            yield name, of.get((parts[0][:-1], INDEX.sub("{}", parts[2][1:])), set()) or {int(parts[1])}


def list_samples(layout: Layout) -> list[str]:
    """Return the tensors outside the layers and, for each template, one tensor per distinct number within a layer."""
    samples = []
    for template, names in layout.names_by_template.items():
        if "{}" not in template:
            samples += names
            continue
        first: dict[tuple[str, ...], str] = {}
        for name in islice(names, MOST_LOOKED_AT):
            numbers = INDEX.findall(name)
            first.setdefault(tuple(numbers[1:]), name)
            if len(first) == MOST_MEMBERS:
                break
        samples += first.values()
        if template.count("{}") == 1:  # `projector.0` and `projector.2` may get other names
            samples += names[1:MOST_MEMBERS]
    return samples


def _parse_renaming(found: Mapping[str, Any]) -> Renaming:
    """Compile the sources of a step as transformers does: longest first, each matching whole parts of a name."""
    branches = []
    for number, source in sorted(enumerate(found["from"]), key=lambda item: -len(item[1])):
        pattern = source.replace("*.", r".*\.")
        if re.search(r"[a-zA-Z0-9]$", pattern):
            pattern += r"(?!\w)"
        branches.append(f"(?P<g{number}>{pattern})")
    return Renaming(
        re.compile("|".join(branches)),
        tuple(found["to"]),
        found.get("scope"),
        found.get("base", ""),
        bool(found.get("converts")),
        found.get("kind") == "GroupWeightRename",
    )


@cache
def _table() -> bytes:
    return (Path(__file__).parent / "parameters.json").read_bytes()


def _parse_line(key: str) -> Any:
    """Return the value of a line of the table, or None."""
    table, opening = _table(), f"\n{json.dumps(key)}: ".encode()
    start = table.find(opening)
    if start < 0:
        return None
    start += len(opening)
    return json.loads(table[start : table.index(b"\n", start)].removesuffix(b","))


@cache
def _legacy_renamings() -> tuple[Renaming, ...]:
    return tuple(_parse_renaming(found) for found in _parse_line("renames"))


@cache
def _find(architecture: str) -> ParametersTable | None:
    facts = _parse_line(architecture)
    return None if facts is None else ParametersTable(architecture, facts)


@cache
def _relatives() -> dict[str, dict[str, Any]]:
    """Return, for classes without a line of their own, the class whose line they share, and their differences from it."""
    relatives: dict[str, dict[str, Any]] | None = _parse_line("relatives")
    return relatives or {}


@cache
def _find_relative(architecture: str) -> ParametersTable | None:
    """Return the table of a class with the same layers, without its head: for a base model, or a model with another head."""
    own = _relatives().get(architecture)
    shared = _find(own["of"]) if own is not None else None
    if own is None or shared is None:
        return None
    usual = shared.facts.get("base", "")
    base = own.get("prefix", usual)
    lacks, more = {*own.get("lacks", ())}, {*own.get("own", ())}
    if own.get("is_whole"):
        needs = shared.needs - lacks
    else:
        start = "" if own.get("is_base") else f"{base}."
        inside = (name for name in shared.needs - lacks if name.startswith(f"{usual}."))
        needs = frozenset(start + name.removeprefix(f"{usual}.") for name in inside)
    kept = {key: shared.facts[key] for key in ("renames",) if key in shared.facts}
    return ParametersTable(architecture, {**kept, "needs": sorted(needs | more), "base": base})
