"""Reads ModelOpt configs as vLLM 0.32.0 does (modelopt.py): one algorithm, or MIXED_PRECISION with one per layer.

A config is either that of hf_quant_config.json (everything below ``quantization``, list ``exclude_modules``) or that of
config.json (flat, list ``ignore``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

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
from ckptcheck.consumers.entries import EntryList, make_substring_keys, parse_exact, parse_fnmatch
from ckptcheck.consumers.fused import DENSE_MODULES, expand_fused, require_agreement

ALGORITHMS = ("FP8", "FP8_PER_CHANNEL_PER_TOKEN", "FP8_PB_WO", "NVFP4", "W4A16_NVFP4", "MXFP8")
VISION = ("vision_tower", "vision_model", "vit_large_projector")


def read_config(request: ConsumerInput) -> QuantizationPolicy:
    """Read a config. Raises ConsumerError where vLLM raises on it."""
    config = request.config
    nested = "quantization" in config
    settings = config["quantization"] if nested else config
    if not isinstance(settings, dict):
        raise ConsumerError("quantization is not an object")
    if not settings.get("quant_algo"):
        raise ConsumerError("quant_algo is missing")
    algorithm = str(settings["quant_algo"]).upper()
    if algorithm not in (*ALGORITHMS, "MIXED_PRECISION"):
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
        return _read_mixed(request, settings, excluded, lists)

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
            # a whole tree is written as `path*`: it is taken apart before the model renames it
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
        number = self.exact.first_match(name)
        names = expand_fused(name, self.fused)
        if names is not None:
            number = number if number is not None else require_agreement(name, names, self.exact.first_match)
        elif "experts" in name:
            number = next((i for i, text in enumerate(self.texts) if "experts" in text and name in text), None)
        if number is None:
            number = self.inside.first_match(name)
        if number is None:
            number = self.wild.first_match(name)
        return self.exact.original(number)


def _read_mixed(
    request: ConsumerInput, settings: Mapping[str, Any], excluded: _VllmExcludeList, lists: dict[str, EntryList]
) -> QuantizationPolicy:
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
    lists = {
        **lists,
        "quantized_layers": (table := EntryList(list(algorithms), parse_exact, originals=list(originals.values()))),
    }
    numbers = {name: number for number, name in enumerate(algorithms)}

    def record_matches(names: list[str]) -> list[str]:
        matches = [name for name in names if name in algorithms]
        for name in matches:
            table.usages[numbers[name]].count += 1
        return matches

    def require_same_algorithm(name: str, matches: list[str]) -> str | None:
        if len({algorithms[each] for each in matches}) > 1:
            raise ConsumerError(f"the shards of {name} get different algorithms")
        return matches[0] if matches else None

    def find_layer(name: str) -> str | None:
        """Return the entry that gives a module its algorithm (`_resolve_quant_algo`)."""
        if matches := record_matches(_list_spellings(name)):
            return matches[0]
        base, _, last = name.rpartition(".")
        base = base or name
        if last in request.structure.fused_modules:
            paths = [
                f"{each}.{shard}" for each in _list_spellings(base) for shard in request.structure.fused_modules[last]
            ]
            if (hit := require_same_algorithm(name, record_matches(paths))) is not None:
                return hit
        beginnings = [f"{each}." for each in _list_spellings(name)]
        if name.endswith(".experts"):
            beginnings.append(name.rsplit(".experts", 1)[0] + ".")
        for beginning in beginnings:
            if (hit := next((each for each in algorithms if each.startswith(beginning)), None)) is not None:
                record_matches([hit])
                return hit
        plain = DENSE_MODULES.get(last, ())
        for each in _list_spellings(name):
            parent = each.rsplit(".", 1)[0] + "."
            if (
                hit := require_same_algorithm(name, record_matches([f"{parent}{shard}" for shard in plain]))
            ) is not None:
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
        algorithm = algorithms[layer]
        known = (*ALGORITHMS, "FP8_BLOCK_SCALES") if module.role == EXPERTS else ALGORITHMS
        if module.role == EXPERTS and algorithm == "FP8_PER_CHANNEL_PER_TOKEN":
            return UNQUANTIZED
        return Decision(quantized=algorithm in known, scheme=algorithm, entry=originals[layer])

    return QuantizationPolicy(decide, lists)


def _list_spellings(name: str) -> list[str]:
    """Return the names under which a layer may stand in quantized_layers (`_quantized_layer_prefix_candidates`)."""
    names = [name]
    if name.endswith(".lm_head"):
        names.append("lm_head")
    if name.startswith("language_model.model."):
        names.append("model.language_model." + name.removeprefix("language_model.model."))
    elif name.startswith("model.language_model."):
        names.append("language_model.model." + name.removeprefix("model.language_model."))
    return names
