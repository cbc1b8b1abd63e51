"""Maps a checkpoint's modules to the modules that a consumer builds, as recorded from the consumer itself.

``vllm.json``, ``sglang.json`` and ``transformers.json`` hold, for each architecture, the modules that the consumer built from
a tiny config: template of the path (numbers as ``{}``) → role, class, and the methods for which it is built without a
quantization config; ``stops`` are the modules whose tensors make its loader raise if they have no parameter.
An engine's table also has ``classes``: what the class of every registered architecture fuses and renames; most of them were never
built. `fixtures/learn_modules.py` writes these tables. For an architecture that was never built, the modules are guessed from
the usual names, and each is marked as a guess.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import msgspec

from ckptcheck.consumers.base import EMBEDDING, EXPERTS, HEAD, LINEAR, OTHER, ModelStructure, Module
from ckptcheck.consumers.entries import DENSE_MODULES

FUSED_MODULES: dict[str, tuple[str, ...]] = {
    "qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "gate_up_proj": ("gate_proj", "up_proj"),
    "fused_qkv_a_proj_with_mqa": ("q_a_proj", "kv_a_proj_with_mqa"),
    "fused_qkv_a_proj": ("q_a_proj", "kv_a_proj_with_mqa"),
    "query_key_value": ("query", "key", "value"),
    "in_proj_qkvz": ("in_proj_qkv", "in_proj_z"),
    "in_proj_ba": ("in_proj_b", "in_proj_a"),
}
"""Fused module → its shards, as engines load them even if their ``packed_modules_mapping`` lacks them."""
NEVER_QUANTIZED = frozenset({"gate", "router", "shared_expert_gate", "conv1d"})
"""Modules that engines build without a quantization config: 40 of the 41 that are recorded of SGLang, 41 of 44 of vLLM."""
_NUMBER = re.compile(r"(?<![^.])\d+(?![^.])")
_ROLES = {"L": LINEAR, "E": EXPERTS, "H": HEAD, "V": EMBEDDING, "O": OTHER}


class ParameterStructures:
    """A trainer that builds no modules and looks each weight up by its parameter name."""

    def load_structure(self, architecture: str | None) -> ModelStructure:
        """Return a structure without fused modules and renaming, the same for every architecture."""
        return ModelStructure()

    def build_modules(self, architecture: str | None, method: str, names: Iterable[str]) -> list[Module]:
        """Return one parameter for each module of the checkpoint."""
        return [Module(f"{name}.weight", "Parameter", OTHER, (name,)) for name in names]


class StructureTable(msgspec.Struct, frozen=True):
    """The modules that one consumer builds, recorded in a JSON file; architectures that are not in it are guessed."""

    path: Path | None
    """None if nothing is recorded: every architecture is guessed."""
    experts_class: str | None = None
    """The class of all experts of a layer in an engine, for a guess. None if the consumer does not fuse modules, like
    transformers."""
    fuses_unknown: bool = False
    """Whether the engine has a ``packed_modules_mapping`` also for an architecture that is not in the table."""
    renames_once: bool = False
    """Whether only the longest rule of a kind renames a name, see `make_rename`."""

    def load_structure(self, architecture: str | None) -> ModelStructure:
        """Return how the consumer fuses and renames the modules of an architecture; a guess if the table lacks it."""
        facts = _load_table(self.path).get(architecture)
        is_guess = facts is None
        if facts is None:
            facts = _load_classes(self.path).get(architecture)
        if facts is None:
            is_unknown = bool(_load_classes(self.path))
            fused = DENSE_MODULES if self.fuses_unknown else {}
            return ModelStructure(fused, default_skips=("lm_head",), is_guess=True, is_unknown=is_unknown)
        fused = {name: tuple(parts) for name, parts in facts.get("fused", {}).items()}
        if is_guess and self.fuses_unknown:  # a model within a composite adds its own
            fused = {**DENSE_MODULES, **fused}
        rename = make_rename(facts["rename"], once=self.renames_once) if facts.get("rename") else str
        return ModelStructure(fused, rename, tuple(facts.get("skipped", ("lm_head",))), is_guess)

    def build_modules(self, architecture: str | None, method: str, names: Iterable[str]) -> list[Module]:
        """Return the modules that the consumer builds out of a checkpoint's modules, each with its sources.

        Args:
            architecture: the first of the config's ``architectures``.
            method: the quantization method; some modules are built without a quantization config for one method only.
            names: paths of modules in the checkpoint, ``model.layers.0.self_attn.q_proj``. The answer leaves out names for
                which the consumer builds nothing.

        """
        facts = _load_table(self.path).get(architecture)
        structure = self.load_structure(architecture)
        into = _join_shards(structure)
        table: Mapping[str, list[Any]] | None = None if facts is None else facts["modules"]
        # its recorded model is one of several that may lie within it
        is_composite = facts is not None and "is_composite" in facts
        guessed: set[str] = set()
        targets: dict[str, tuple[str, list[Any]] | None] = {}
        depths: dict[str, int] = {}
        sources_by_target: dict[tuple[str, tuple[str, ...]], list[str]] = {}
        for name, template, numbers in _split_templates(tuple(names)):
            if template not in targets:
                # renaming rules are for tensors: some match only with the suffix after the module's name
                renamed = structure.rename(f"{template}.weight").removesuffix(".weight")
                target = None if table is None else _find_target(renamed, table, into)
                if target is None and (table is None or is_composite):
                    target = self._guess_target(renamed)
                    guessed.add(target[0])
                targets[template] = target
                depths[template] = target[0].count("{}") if target is not None else 0
            target = targets[template]
            if target is not None:
                sources_by_target.setdefault((target[0], numbers[: depths[template]]), []).append(name)
        entries = {target[0]: target[1] for target in targets.values() if target is not None}
        strict = frozenset(facts.get("stops", ()) if facts is not None else ())
        return [
            _build_module(
                template, numbers, entries[template], sources, method, template in guessed, template in strict
            )
            for (template, numbers), sources in sources_by_target.items()
        ]

    def find_other_prefixes(
        self, architecture: str | None, templates: Iterable[str]
    ) -> dict[tuple[str, str], list[str]]:
        """Return (prefix, the consumer's prefix) → the modules that it would load under its own prefix and finds under none.

        Args:
            architecture: the first of the config's ``architectures``; {} for one whose modules are guessed.
            templates: paths of all modules with a matrix in the checkpoint, with {} for each number.

        """
        facts = _load_table(self.path).get(architecture)
        if facts is None:
            return {}
        structure, table = self.load_structure(architecture), facts["modules"]
        into = _join_shards(structure)

        def find(template: str) -> str | None:
            target = _find_target(structure.rename(f"{template}.weight").removesuffix(".weight"), table, into)
            return None if target is None else target[0]

        found = {template: find(template) for template in templates}
        empty = table.keys() - found.values()
        prefixes = {"", *(name[: dot.start()] for name in empty for dot in re.finditer(r"\.", name))}
        moves: dict[tuple[str, str], list[str]] = {}
        for template in (template for template, target in found.items() if target is None):
            for at in (0, *(dot.end() for dot in re.finditer(r"\.", template))):
                for prefix in prefixes - {template[:at].removesuffix(".")}:
                    if find(f"{prefix}.{template[at:]}".removeprefix(".")) in empty:
                        moves.setdefault((template[:at].removesuffix("."), prefix), []).append(template)
        chosen: dict[tuple[str, str], list[str]] = {}
        while moves:
            best = max(moves, key=lambda move: (len(moves[move]), -len(".".join(move))))
            chosen[best] = moves[best]
            rest = {move: [one for one in alike if one not in chosen[best]] for move, alike in moves.items()}
            moves = {move: alike for move, alike in rest.items() if alike}
        return chosen

    def _guess_target(self, template: str) -> tuple[str, list[Any]]:
        """Return what the consumer would probably build for an architecture that is not in the table."""
        parent, _, last = template.rpartition(".")
        is_engine = self.experts_class is not None
        if is_engine and ".experts" in f"{template}." and (at := template.find(".experts")) >= 0:
            return template[: at + 8], ["E", self.experts_class, False]
        if "norm" in last:
            return template, ["O", "Norm", True]
        if is_engine and last in NEVER_QUANTIZED:
            return template, ["L", "ReplicatedLinear", True]
        if last == "lm_head":
            return template, ["H", "ParallelLMHead", False] if is_engine else ["L", "Linear", False]
        if "embed" in last or last == "wte":
            return template, ["V", "VocabParallelEmbedding" if is_engine else "Embedding", False]
        for whole in ("qkv_proj", "gate_up_proj") if is_engine else ():
            if last in FUSED_MODULES[whole]:
                kind = "QKVParallelLinear" if whole == "qkv_proj" else "MergedColumnParallelLinear"
                return f"{parent}.{whole}" if parent else whole, ["L", kind, False]
        return template, ["L", "ColumnParallelLinear" if is_engine else "Linear", False]


@cache
def _load_file(path: Path | None) -> Mapping[str, Mapping[str | None, Any]]:
    if path is None:
        return {}
    recorded: Mapping[str, Mapping[str | None, Any]] = json.loads(path.read_text(encoding="utf-8"))
    return recorded


def _load_table(path: Path | None) -> Mapping[str | None, Any]:
    """Return architecture → what is recorded about it."""
    return _load_file(path).get("architectures", {})


def _load_classes(path: Path | None) -> Mapping[str | None, Any]:
    """Return architecture → what its class fuses and renames, for all architectures of an engine; {} for other consumers."""
    return _load_file(path).get("classes", {})


@lru_cache(maxsize=2)
def _split_templates(names: tuple[str, ...]) -> list[tuple[str, str, tuple[str, ...]]]:
    """Return each name, its template and its numbers. Cached, because every consumer gets the same names."""
    return [(name, _NUMBER.sub("{}", name), tuple(_NUMBER.findall(name))) for name in names]


def _join_shards(structure: ModelStructure) -> dict[str, list[str]]:
    """Return shard → the fused modules that it may be a part of."""
    into: dict[str, list[str]] = {}
    for whole, shards in {**FUSED_MODULES, **structure.fused_modules}.items():
        for shard in shards:
            into.setdefault(shard, []).append(whole)
    return into


def _build_module(
    template: str,
    numbers: tuple[str, ...],
    entry: list[Any],
    sources: list[str],
    method: str,
    is_guess: bool,
    is_strict: bool,
) -> Module:
    """Make a module from its entry in the table: [role, class, methods without a config (true: all), path, projections]."""
    role, class_name, unquantized, *rest = entry
    path = (rest[0] if rest and rest[0] else template).format(*numbers)
    projections = tuple(one for one in rest[1] if one) if len(rest) > 1 else ("gate_proj", "up_proj", "down_proj")
    is_quantizable = unquantized is not True and method not in (unquantized or ())
    return Module(path, class_name, _ROLES[role], tuple(sources), is_quantizable, projections, is_guess, is_strict)


def _find_target(
    template: str, table: Mapping[str, list[Any]], into: Mapping[str, list[str]]
) -> tuple[str, list[Any]] | None:
    """Find the module that a module of the checkpoint is loaded into: itself, a fused one, or the experts."""
    parent, _, last = template.rpartition(".")
    candidates = [template, *(f"{parent}.{whole}" if parent else whole for whole in into.get(last, ()))]
    experts = template.find(".experts.")
    if experts >= 0:
        candidates += [template[: experts + 8], f"{template[: experts + 8]}.routed_experts"]
    if template.endswith(".experts"):
        candidates.append(f"{template}.routed_experts")
    # some models keep a module under another path than the config names
    path_in_config = {entry[3]: path for path, entry in table.items() if len(entry) > 3 and entry[3]}
    path = next((each for each in candidates if each in table), None)
    path = path or next((path_in_config[each] for each in candidates if each in path_in_config), None)
    return None if path is None else (path, table[path])


def make_rename(rules: Mapping[str, Any], *, once: bool) -> Callable[[str], str]:
    """Return the consumer's own renaming of weights: `WeightsMapper`, which each engine has in its own version.

    once: SGLang's, in which only the longest rule of a kind applies.
    """
    patterns = [(re.compile(pattern), new) for pattern, new in rules.get("regex", [])]

    def read_rules(kind: str) -> list[tuple[str, str]]:
        listed = [(old, new) for old, new in rules.get(kind, [])]
        return sorted(listed, key=lambda rule: -len(rule[0])) if once else listed

    substrings, prefixes, suffixes = read_rules("substr"), read_rules("prefix"), read_rules("suffix")

    def rename(name: str) -> str:
        for pattern, new in patterns:
            name = pattern.sub(new, name)
        for old, new in substrings:
            if old in name:
                name = name.replace(old, new, 1)
                if once:
                    break
        for old, new in prefixes:
            if name.startswith(old):
                name = name.replace(old, new, 1)
                if once:
                    break
        for old, new in suffixes:
            if name.endswith(old):
                name = new.join(name.rsplit(old, 1))
                if once:
                    break
        return name

    return rename
