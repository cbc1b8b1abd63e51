"""Which modules a consumer builds out of a checkpoint's, as learned from the consumer itself.

``vllm.json``, ``sglang.json`` and ``transformers.json`` hold, for each architecture, the modules that the consumer
built from a tiny config: template of the path (numbers as ``{}``) → class, what it is, and for which methods it is
built without a quantization config; ``stops`` are those at whose tensors its loader raises where they have no place.
`fixtures/learn_modules.py` writes them. An architecture that is not there is guessed from the usual names, and every
module says so.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from ckptcheck.dialects.base import EMBEDDING, EXPERTS, HEAD, LINEAR, OTHER, Module, Structure

FUSED: dict[str, tuple[str, ...]] = {
    "qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "gate_up_proj": ("gate_proj", "up_proj"),
    "fused_qkv_a_proj_with_mqa": ("q_a_proj", "kv_a_proj_with_mqa"),
    "fused_qkv_a_proj": ("q_a_proj", "kv_a_proj_with_mqa"),
    "query_key_value": ("query", "key", "value"),
    "in_proj_qkvz": ("in_proj_qkv", "in_proj_z"),
    "in_proj_ba": ("in_proj_b", "in_proj_a"),
}
"""What engines load into one module, whether or not their list of fused modules (``packed_modules_mapping``) says so."""
_NUMBER = re.compile(r"(?<![^.])\d+(?![^.])")
_ROLES = {"L": LINEAR, "E": EXPERTS, "H": HEAD, "V": EMBEDDING, "O": OTHER}


@cache
def _learned(consumer: str) -> Mapping[str, Any]:
    path = Path(__file__).with_name(f"{consumer}.json")
    found: Mapping[str, Any] = json.loads(path.read_text()) if path.exists() else {"architectures": {}}
    return found


def learned(consumer: str) -> frozenset[str]:
    """Return the architectures that were built with a consumer."""
    return frozenset(_learned(consumer)["architectures"])


def structure(consumer: str, architecture: str | None) -> Structure:
    """Return how a consumer fuses and renames the modules of an architecture; a guess where it was not learned."""
    known = _learned(consumer)["architectures"].get(architecture)
    if known is None:
        return Structure({} if consumer != "vllm" else FUSED, guessed=True, skipped=("lm_head",))
    fused = {name: tuple(parts) for name, parts in known.get("fused", {}).items()}
    rename = renaming(known["rename"], once=consumer == "sglang") if known.get("rename") else str
    return Structure(fused, rename, tuple(known.get("skipped", ("lm_head",))))


def modules(consumer: str, architecture: str | None, method: str, names: Iterable[str]) -> list[Module]:
    """Return the modules that a consumer builds out of a checkpoint's modules, each with those it is made of.

    names: paths of modules in the checkpoint, ``model.layers.0.self_attn.q_proj``. Those of no module are left out.
    """
    known = _learned(consumer)["architectures"].get(architecture)
    of = structure(consumer, architecture)
    fuses = {**FUSED, **of.fused}
    into: dict[str, list[str]] = {}
    for whole, shards in fuses.items():
        for shard in shards:
            into.setdefault(shard, []).append(whole)
    table: Mapping[str, list[Any]] | None = None if known is None else known["modules"]
    places: dict[str, tuple[str, list[Any]] | None] = {}
    depths: dict[str, int] = {}
    parts: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for name, template, numbers in _templates(tuple(names)):
        if template not in places:
            # its rules are for tensors: some only fit with what follows the module's name
            found = _place(of.rename(f"{template}.weight").removesuffix(".weight"), table, into, consumer)
            places[template] = found
            depths[template] = found[0].count("{}") if found is not None else 0
        place = places[template]
        if place is not None:
            parts.setdefault((place[0], numbers[: depths[template]]), []).append(name)
    by_template = {place[0]: place[1] for place in places.values() if place is not None}
    stops = frozenset(known.get("stops", ()) if known is not None else ())
    return [
        _module(template, numbers, by_template[template], tuple(made), method, table is None, template in stops)
        for (template, numbers), made in parts.items()
    ]


@lru_cache(maxsize=2)
def _templates(names: tuple[str, ...]) -> list[tuple[str, str, tuple[str, ...]]]:
    """Return each name, its template and its numbers. Every consumer is asked about the same names."""
    return [(name, _NUMBER.sub("{}", name), tuple(_NUMBER.findall(name))) for name in names]


def _module(
    template: str,
    numbers: tuple[str, ...],
    entry: list[Any],
    parts: tuple[str, ...],
    method: str,
    guessed: bool,
    stops: bool,
) -> Module:
    role, kind, plain, *rest = entry
    path = (rest[0] if rest and rest[0] else template).format(*numbers)
    shards = tuple(rest[1]) if len(rest) > 1 else ("gate_proj", "up_proj", "down_proj")
    quantizable = plain is not True and method not in (plain or ())
    return Module(path, kind, _ROLES[role], parts, quantizable, shards, guessed, stops)


def _place(
    template: str, table: Mapping[str, list[Any]] | None, into: Mapping[str, list[str]], consumer: str
) -> tuple[str, list[Any]] | None:
    """Find the module that a module of the checkpoint goes into: itself, a fused one, or the experts."""
    parent, _, last = template.rpartition(".")
    candidates = [template, *(f"{parent}.{whole}" if parent else whole for whole in into.get(last, ()))]
    if table is None:
        return _guess(template, consumer)
    experts = template.find(".experts.")
    if experts >= 0:
        candidates += [template[: experts + 8], f"{template[: experts + 8]}.routed_experts"]
    if template.endswith(".experts"):
        candidates.append(f"{template}.routed_experts")
    asked = {entry[3]: path for path, entry in table.items() if len(entry) > 3 and entry[3]}  # some keep it elsewhere
    found = next((each for each in candidates if each in table), None)
    found = found or next((asked[each] for each in candidates if each in asked), None)
    return None if found is None else (found, table[found])


def _guess(template: str, consumer: str) -> tuple[str, list[Any]]:
    """Say what an engine that nobody asked would probably build."""
    parent, _, last = template.rpartition(".")
    engine = consumer in ("vllm", "sglang")
    if engine and ".experts" in f"{template}." and (at := template.find(".experts")) >= 0:
        return template[: at + 8], ["E", "RoutedExperts" if consumer == "vllm" else "FusedMoE", False]
    if "norm" in last:
        return template, ["O", "Norm", True]
    if last == "lm_head":
        return template, ["H", "ParallelLMHead", False] if engine else ["L", "Linear", False]
    if "embed" in last or last == "wte":
        return template, ["V", "VocabParallelEmbedding" if engine else "Embedding", False]
    for whole in ("qkv_proj", "gate_up_proj") if engine else ():
        if last in FUSED[whole]:
            kind = "QKVParallelLinear" if whole == "qkv_proj" else "MergedColumnParallelLinear"
            return f"{parent}.{whole}" if parent else whole, ["L", kind, False]
    return template, ["L", "ColumnParallelLinear" if engine else "Linear", False]


def renaming(rules: Mapping[str, Any], *, once: bool) -> Callable[[str], str]:
    """Return the consumer's own renaming of weights: `WeightsMapper`, which each engine has in its own version.

    once: SGLang's, in which only the longest rule of a kind applies.
    """
    patterns = [(re.compile(pattern), new) for pattern, new in rules.get("regex", [])]

    def of(kind: str) -> list[tuple[str, str]]:
        listed = [(old, new) for old, new in rules.get(kind, [])]
        return sorted(listed, key=lambda rule: -len(rule[0])) if once else listed

    substrings, prefixes, endings = of("substr"), of("prefix"), of("suffix")

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
        for old, new in endings:
            if name.endswith(old):
                name = new.join(name.rsplit(old, 1))
                if once:
                    break
        return name

    return rename
