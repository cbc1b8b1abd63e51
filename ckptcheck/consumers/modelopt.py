"""Reads ModelOpt configs as vLLM 0.32.0 and SGLang 0.5.23 do: one algorithm, or MIXED_PRECISION with one per layer.

A config comes from hf_quant_config.json (everything below ``quantization``, list ``exclude_modules``) or from config.json (flat,
list ``ignore``). Unlike vLLM, SGLang tries an entry as a pattern on the whole name *and on each component*, so ``mlp`` excludes
every module below any ``mlp``.

Sources: modelopt.py of vLLM, modelopt_quant.py of SGLang.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any

import msgspec

from ckptcheck.consumers.base import (
    EMBEDDING,
    EXPERTS,
    HEAD,
    LINEAR,
    UNQUANTIZED,
    ConsumerError,
    ConsumerInput,
    Decision,
    Module,
)
from ckptcheck.consumers.config_lists import read_text_list
from ckptcheck.consumers.consumer import QuantizationPolicy
from ckptcheck.consumers.entries import (
    DENSE_MODULES,
    EntryList,
    ParseEntry,
    find_skipped_by_sglang,
    find_skipped_by_vllm,
    make_substring_keys,
    parse_dotted_wildcard,
    parse_exact,
    parse_fnmatch,
    parse_path,
    split_component_runs,
)

VLLM_ALGORITHMS = ("FP8", "FP8_PER_CHANNEL_PER_TOKEN", "FP8_PB_WO", "NVFP4", "W4A16_NVFP4", "MXFP8")
SGLANG_ALGORITHMS = ("FP8", "NVFP4", "NVFP4_AWQ", "W4A16_NVFP4")
SGLANG_LINEARS = ("FP8", "FP8_PB_WO", "FP8_BLOCK_SCALES", "MXFP8", "NVFP4", "W4A16_NVFP4")
"""Algorithms that SGLang's linear layers accept in MIXED_PRECISION."""
VISION = ("vision_tower", "vision_model", "vit_large_projector")
MLA = ("q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj")
LANGUAGE = "language_model."


class _LayerTable(msgspec.Struct, frozen=True, dict=True):
    """The ``quantized_layers`` of MIXED_PRECISION, by the names that the engine gives to the layers."""

    algorithms: dict[str, str]
    """Layer → its algorithm."""
    originals: dict[str, str]
    """Layer → its name in the config."""
    entries: EntryList

    @classmethod
    def read(cls, request: ConsumerInput, settings: Mapping[str, Any], parse: ParseEntry) -> _LayerTable:
        """Read the table. Raises ConsumerError if both engines raise on it."""
        layers = settings.get("quantized_layers") or {}
        if not isinstance(layers, dict) or not layers:
            raise ConsumerError("MIXED_PRECISION needs quantized_layers")
        algorithms: dict[str, str] = {}
        originals: dict[str, str] = {}
        for name, settings_of_layer in layers.items():
            if not isinstance(settings_of_layer, dict) or not isinstance(settings_of_layer.get("quant_algo"), str):
                raise ConsumerError(f"quantized_layers {name!r} names no quant_algo")
            renamed = request.structure.rename(name)
            algorithms[renamed], originals[renamed] = settings_of_layer["quant_algo"].upper(), name
        return cls(algorithms, originals, EntryList(list(algorithms), parse, originals=list(originals.values())))

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {name: number for number, name in enumerate(self.algorithms)}

    def record_matches(self, names: Iterable[str]) -> list[str]:
        """Return the names that have an entry, and count each as used."""
        matches = [name for name in names if name in self.algorithms]
        for name in matches:
            self.entries.usages[self._numbers[name]].count += 1
        return matches

    def find_shard(self, module: str, shards: Iterable[str]) -> str | None:
        """Return the first shard of a fused module with an entry. Raises ConsumerError if others have another algorithm."""
        matches = self.record_matches(shards)
        if len({self.algorithms[each] for each in matches}) > 1:
            raise ConsumerError(f"the shards of {module} get different algorithms")
        return matches[0] if matches else None

    def find_below(self, parents: Iterable[str]) -> str | None:
        """Return the first entry for a layer below one of the parents."""
        for parent in parents:
            if (hit := next((each for each in self.algorithms if each.startswith(f"{parent}.")), None)) is not None:
                self.record_matches([hit])
                return hit
        return None


def read_by_vllm(request: ConsumerInput) -> QuantizationPolicy:
    """Read a config. Raises ConsumerError if vLLM raises on it."""
    config = request.config
    nested = "quantization" in config
    settings = config["quantization"] if nested else config
    if not isinstance(settings, dict):
        raise ConsumerError("quantization is not an object")
    if not settings.get("quant_algo"):
        raise ConsumerError("quant_algo is missing")
    algorithm = str(settings["quant_algo"]).upper()
    if algorithm not in (*VLLM_ALGORITHMS, "MIXED_PRECISION"):
        raise ConsumerError(f"quant_algo {algorithm} is not supported")
    key = "exclude_modules" if nested else "ignore"
    if not isinstance(settings.get(key, []), list):
        raise ConsumerError(f"{key} is not a list")
    needed: tuple[str, ...] = ("group_size", "kv_cache_quant_algo", "exclude_modules") if "NVFP4" in algorithm else ()
    needed = ("kv_cache_quant_algo", "exclude_modules") if algorithm == "MXFP8" else needed
    if nested and (missing := [name for name in needed if name not in settings]):
        raise ConsumerError(f"{algorithm} needs {', '.join(missing)}")
    excluded = _VllmExcludeList(request, read_text_list(settings, key))
    lists = {key: excluded.exact}
    if algorithm == "MIXED_PRECISION":
        return _read_mixed_by_vllm(request, settings, excluded, lists)

    def decide(module: Module) -> Decision:
        hit = excluded.entry(module.name)
        if hit is not None:
            return Decision(quantized=False, entry=hit)
        if any(part in module.name for part in VISION):
            return Decision(quantized=False, scheme="vision")
        if module.role in (LINEAR, HEAD, EXPERTS):
            return Decision(quantized=True, scheme=algorithm)
        return UNQUANTIZED

    return QuantizationPolicy(decide, lists)


class _VllmExcludeList:
    """`is_layer_excluded`: the exact name or all shards, then substrings, then wildcards."""

    def __init__(self, request: ConsumerInput, listed: list[str]) -> None:
        self.fused = request.structure.fused_modules
        texts, originals = [], []
        for text in listed:
            # vLLM splits `path*`, which excludes a whole tree, before the model renames the path
            halves = (
                [text[:-1], f"{text[:-1]}.*"] if text.endswith("*") and len(text) > 1 and text[-2] != "." else [text]
            )
            texts += [request.structure.rename(half) for half in halves]
            originals += [text] * len(halves)
        self.texts = texts
        self.exact = EntryList(texts, parse_exact, originals=originals)
        self.inside = EntryList(texts, parse_exact, originals=originals, keys=make_substring_keys(texts))
        self.wild = EntryList(texts, parse_fnmatch, originals=originals, full=True)
        self.exact.usages = self.inside.usages = self.wild.usages

    def entry(self, name: str) -> str | None:
        if not self.texts:
            return None
        number = find_skipped_by_vllm(self.exact, name, self.fused, exact=True)
        if number is None:
            number = self.inside.first_match(name)
        if number is None:
            number = self.wild.first_match(name)
        return self.exact.original(number)


def _read_mixed_by_vllm(
    request: ConsumerInput, settings: Mapping[str, Any], excluded: _VllmExcludeList, lists: dict[str, EntryList]
) -> QuantizationPolicy:
    table = _LayerTable.read(request, settings, parse_exact)
    fused = request.structure.fused_modules

    def find_layer(name: str) -> str | None:
        """Return the entry that gives a module its algorithm (`_resolve_quant_algo`)."""
        spellings = _list_spellings(name)
        if matches := table.record_matches(spellings):
            return matches[0]
        base, _, last = name.rpartition(".")
        shards = [f"{each}.{shard}" for each in _list_spellings(base or name) for shard in fused.get(last, ())]
        if (hit := table.find_shard(name, shards)) is not None:
            return hit
        layer = [name.rsplit(".experts", 1)[0]] if name.endswith(".experts") else []
        if (hit := table.find_below([*spellings, *layer])) is not None:
            return hit
        for each in spellings:
            parent = each.rsplit(".", 1)[0]
            plain = [f"{parent}.{shard}" for shard in DENSE_MODULES.get(last, ())]
            if (hit := table.find_shard(name, plain)) is not None:
                return hit
        return None

    def decide(module: Module) -> Decision:
        hit = excluded.entry(module.name)
        if hit is not None:
            return Decision(quantized=False, entry=hit)
        if module.role not in (LINEAR, HEAD, EXPERTS, EMBEDDING):
            return UNQUANTIZED
        layer = find_layer(module.name)
        if layer is None or module.role == EMBEDDING:
            return UNQUANTIZED
        algorithm = table.algorithms[layer]
        known = (*VLLM_ALGORITHMS, "FP8_BLOCK_SCALES") if module.role == EXPERTS else VLLM_ALGORITHMS
        if module.role == EXPERTS and algorithm == "FP8_PER_CHANNEL_PER_TOKEN":
            return UNQUANTIZED
        return Decision(quantized=algorithm in known, scheme=algorithm, entry=table.originals[layer])

    return QuantizationPolicy(decide, {**lists, "quantized_layers": table.entries})


def _list_spellings(name: str, *, sglang: bool = False) -> list[str]:
    """Return the names under which a layer may stand in quantized_layers (`_quantized_layer_prefix_candidates` of both)."""
    names = [name]
    if name.endswith(".lm_head"):
        names.append("lm_head")
    inner, outer = "language_model.model.", "model.language_model."
    if name.startswith(inner):
        names.append(outer + name.removeprefix(inner))
    elif name.startswith(outer):
        rest = name.removeprefix(outer)
        names += [inner + rest, *([f"model.{rest}"] if sglang else [])]
    elif sglang and name.startswith("model."):
        names.append(outer + name.removeprefix("model."))
    return names


def read_by_sglang(request: ConsumerInput) -> QuantizationPolicy:
    """Read a config. Raises ConsumerError if SGLang raises on it."""
    config = request.config
    nested = config.get("quant_algo") is None
    settings = config.get("quantization") if nested else config
    if not isinstance(settings, dict):
        raise ConsumerError("quant_algo is missing")
    algorithm = settings.get("quant_algo")
    if algorithm not in (*SGLANG_ALGORITHMS, "MIXED_PRECISION"):
        raise ConsumerError(f"quant_algo {algorithm} is not supported")
    keys = ("exclude_modules",) if nested else ("ignore", "modules_to_not_convert", "exclude_modules")
    if algorithm == "FP8":
        keys = keys[:1]
    key = next((each for each in keys if each in settings), keys[0])
    excluded = _SglangExcludeList(request, read_text_list(settings, key))
    lists = {key: excluded.whole}
    if algorithm == "MIXED_PRECISION":
        return _read_mixed_by_sglang(request, settings, excluded, lists)

    def decide(module: Module) -> Decision:
        if module.role not in (LINEAR, HEAD, EXPERTS):
            return UNQUANTIZED
        hit = excluded.entry(module)
        return Decision(quantized=hit is None, scheme=algorithm if hit is None else None, entry=hit)

    return QuantizationPolicy(decide, lists)


class _SglangExcludeList:
    """`is_layer_skipped` (not for fused experts), then `is_layer_excluded`."""

    def __init__(self, request: ConsumerInput, listed: list[str]) -> None:
        self.fused = request.structure.fused_modules
        renamed, originals = [], []
        for text in listed:
            spellings = [request.structure.rename(text)]
            if request.structure.rename is not str and spellings[0].startswith(LANGUAGE):
                spellings.append(spellings[0].removeprefix(LANGUAGE))
            renamed += spellings
            originals += [text] * len(spellings)
        self.texts = renamed
        self.paths = EntryList(renamed, parse_path, originals=originals, keys=split_component_runs)
        self.whole = EntryList(renamed, parse_dotted_wildcard, originals=originals, full=True, like_regex=True)
        self.paths.usages = self.whole.usages

    def entry(self, module: Module) -> str | None:
        name, hit = module.name, None
        if module.role != EXPERTS:
            hit = find_skipped_by_sglang(self.paths, name, self.fused)
        if hit is None:
            hit = self._find_excluding(name)
        return self.whole.original(hit)

    def _find_excluding(self, name: str) -> int | None:
        names = [name, *([name.removeprefix(LANGUAGE)] if name.startswith(LANGUAGE) else [])]
        tried = list(dict.fromkeys(part for each in names for part in (each, *each.split("."))))
        last = name.rsplit(".", 1)[-1]
        tails = (i for i, text in enumerate(self.texts) if (tail := text.rsplit(".", 1)[-1]) in MLA and tail in last)
        number = min([*(hit for each in tried for hit in self.whole.match_all(each)), *tails], default=None)
        self.whole.check_entries_before(number)
        return number


def _read_mixed_by_sglang(
    request: ConsumerInput, settings: Mapping[str, Any], excluded: _SglangExcludeList, lists: dict[str, EntryList]
) -> QuantizationPolicy:
    table = _LayerTable.read(request, settings, parse_path)
    fused = request.structure.fused_modules

    def find_layer(name: str) -> str | None:
        """Return the entry that gives a module its algorithm (`_resolve_quant_algo`)."""
        spellings = _list_spellings(name, sglang=True)
        if (first := next((each for each in spellings if each in table.algorithms), None)) is not None:
            table.record_matches([first])
            return first
        base, _, last = name.rpartition(".")
        shards = [
            f"{each}.{shard}" for each in _list_spellings(base or name, sglang=True) for shard in fused.get(last, ())
        ]
        hit = table.find_shard(name, shards)
        return hit if hit is not None else table.find_below(spellings)

    def decide(module: Module) -> Decision:
        if module.role not in (LINEAR, HEAD, EXPERTS, EMBEDDING):
            return UNQUANTIZED
        layer = find_layer(module.name)
        hit = excluded.entry(module)
        if hit is not None or layer is None:
            return Decision(quantized=False, entry=hit)
        known = ("NVFP4",) if module.role == EMBEDDING else SGLANG_LINEARS
        return Decision(
            quantized=table.algorithms[layer] in known, scheme=table.algorithms[layer], entry=table.originals[layer]
        )

    return QuantizationPolicy(decide, {**lists, "quantized_layers": table.entries})
