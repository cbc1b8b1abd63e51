"""Reads ModelOpt configs as SGLang 0.5.23 does (modelopt_quant.py): FP8, NVFP4, or MIXED_PRECISION with one per layer.

Unlike vLLM it tries an entry as a pattern on the whole name *and on each component*, so ``mlp`` excludes every module
below any ``mlp``.
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
from ckptcheck.consumers.entries import EntryList, parse_dotted_wildcard, parse_path, split_component_runs
from ckptcheck.consumers.fused import DENSE_MODULES, expand_fused, require_agreement

MLA = ("q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj")
LINEARS = ("FP8", "FP8_PB_WO", "FP8_BLOCK_SCALES", "MXFP8", "NVFP4", "W4A16_NVFP4")
LANGUAGE = "language_model."


def read_config(request: ConsumerInput) -> QuantizationPolicy:
    """Read a config. Raises ConsumerError where SGLang raises on it."""
    config = request.config
    nested = config.get("quant_algo") is None
    settings = config.get("quantization") if nested else config
    if not isinstance(settings, dict):
        raise ConsumerError("quant_algo is missing")
    algorithm = settings.get("quant_algo")
    if algorithm not in ("FP8", "NVFP4", "NVFP4_AWQ", "W4A16_NVFP4", "MIXED_PRECISION"):
        raise ConsumerError(f"quant_algo {algorithm} is not supported")
    keys = ("exclude_modules",) if nested else ("ignore", "modules_to_not_convert", "exclude_modules")
    if algorithm == "FP8":
        keys = keys[:1]
    key = next((each for each in keys if each in settings), keys[0])
    excluded = _SglangExcludeList(request, read_text_list(settings, key))
    lists = {key: excluded.whole}
    if algorithm == "MIXED_PRECISION":
        return _read_mixed(request, settings, excluded, lists)

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
            hit = self._find_skipping(name)
        if hit is None:
            hit = self._find_excluding(name)
        return self.whole.original(hit)

    def _find_skipping(self, name: str) -> int | None:
        names = expand_fused(name, self.fused if name.rsplit(".", 1)[-1] in self.fused else DENSE_MODULES)
        if names is not None:
            return require_agreement(name, names, self.paths.first_match)
        hit = self.paths.first_match(name)
        if hit is None and "gate_up_proj" in name:
            both = [name.replace("gate_up_proj", shard) for shard in ("gate_proj", "up_proj")]
            hit = self.texts.index(both[0]) if all(each in self.texts for each in both) else None
        elif hit is None and "experts" in name:
            hit = next((i for i, text in enumerate(self.texts) if "experts" in text and name in text), None)
        return hit

    def _find_excluding(self, name: str) -> int | None:
        names = [name, *([name.removeprefix(LANGUAGE)] if name.startswith(LANGUAGE) else [])]
        tried = list(dict.fromkeys(part for each in names for part in (each, *each.split("."))))
        last = name.rsplit(".", 1)[-1]
        tails = (i for i, text in enumerate(self.texts) if (tail := text.rsplit(".", 1)[-1]) in MLA and tail in last)
        number = min([*(hit for each in tried for hit in self.whole.match_all(each)), *tails], default=None)
        self.whole.check_entries_before(number)
        return number


def _read_mixed(
    request: ConsumerInput, settings: Mapping[str, Any], excluded: _SglangExcludeList, lists: dict[str, EntryList]
) -> QuantizationPolicy:
    layers = settings.get("quantized_layers") or {}
    if not isinstance(layers, dict) or not layers:
        raise ConsumerError("MIXED_PRECISION needs quantized_layers")
    algorithms, originals = {}, {}
    for name, settings_of_layer in layers.items():
        if not isinstance(settings_of_layer, dict) or not isinstance(settings_of_layer.get("quant_algo"), str):
            raise ConsumerError(f"quantized_layers {name!r} names no quant_algo")
        renamed = request.structure.rename(name)
        algorithms[renamed], originals[renamed] = settings_of_layer["quant_algo"].upper(), name
    table = EntryList(list(algorithms), parse_path, originals=list(originals.values()))
    numbers = {name: number for number, name in enumerate(algorithms)}

    def record_match(name: str) -> str:
        table.usages[numbers[name]].count += 1
        return name

    def find_layer(name: str) -> str | None:
        """Return the entry that gives a module its algorithm (`_resolve_quant_algo`)."""
        for each in _list_spellings(name):
            if each in algorithms:
                return record_match(each)
        base, _, last = name.rpartition(".")
        if last in request.structure.fused_modules:
            tried = (
                f"{each}.{s}" for each in _list_spellings(base or name) for s in request.structure.fused_modules[last]
            )
            matches = [record_match(each) for each in tried if each in algorithms]
            if len({algorithms[each] for each in matches}) > 1:
                raise ConsumerError(f"the shards of {name} get different algorithms")
            if matches:
                return matches[0]
        for each in _list_spellings(name):
            if (hit := next((key for key in algorithms if key.startswith(f"{each}.")), None)) is not None:
                return record_match(hit)
        return None

    def decide(module: Module) -> Decision:
        if module.role not in (LINEAR, HEAD, EXPERTS, EMBEDDING):
            return UNQUANTIZED
        layer = find_layer(module.name)
        hit = excluded.entry(module)
        if hit is not None or layer is None:
            return Decision(quantized=False, entry=hit)
        known = ("NVFP4",) if module.role == EMBEDDING else LINEARS
        return Decision(quantized=algorithms[layer] in known, scheme=algorithms[layer], entry=originals[layer])

    return QuantizationPolicy(decide, {**lists, "quantized_layers": table})


def _list_spellings(name: str) -> list[str]:
    """Return the names under which a layer may stand in quantized_layers (`_quantized_layer_prefix_candidates`)."""
    names = [name]
    if name.endswith(".lm_head"):
        names.append("lm_head")
    inner, outer = "language_model.model.", "model.language_model."
    if name.startswith(inner):
        names.append(outer + name.removeprefix(inner))
    elif name.startswith(outer):
        names += [inner + name.removeprefix(outer), "model." + name.removeprefix(outer)]
    elif name.startswith("model."):
        names.append(outer + name.removeprefix("model."))
    return names
