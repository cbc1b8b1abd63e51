"""ModelOpt configs in vLLM 0.32.0 (modelopt.py): one algorithm, or MIXED_PRECISION with one per layer.

A config is either that of hf_quant_config.json (everything below ``quantization``, list ``exclude_modules``) or that of
config.json (flat, list ``ignore``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ckptcheck.dialects.base import EMBEDDING, EXPERTS, HEAD, LINEAR, Module, Question, Refused, Verdict
from ckptcheck.dialects.entries import Entries, equal, glob, pieces
from ckptcheck.dialects.fused import agreed, shards
from ckptcheck.dialects.reading import Reader, text_list

ALGORITHMS = ("FP8", "FP8_PER_CHANNEL_PER_TOKEN", "FP8_PB_WO", "NVFP4", "W4A16_NVFP4", "MXFP8")
VISION = ("vision_tower", "vision_model", "vit_large_projector")
PLAIN = Verdict(quantized=False)


def read(question: Question) -> Reader:
    """Read a config. Raises Refused where vLLM raises on it."""
    config = question.config
    nested = "quantization" in config
    settings = config["quantization"] if nested else config
    if not isinstance(settings, dict):
        raise Refused("quantization is not an object")
    if not settings.get("quant_algo"):
        raise Refused("quant_algo is missing")
    algorithm = str(settings["quant_algo"]).upper()
    if algorithm not in (*ALGORITHMS, "MIXED_PRECISION"):
        raise Refused(f"quant_algo {algorithm} is not supported")
    key = "exclude_modules" if nested else "ignore"
    if not isinstance(settings.get(key, []), list):
        raise Refused(f"{key} is not a list")
    needed: tuple[str, ...] = ("group_size", "kv_cache_quant_algo", "exclude_modules") if "NVFP4" in algorithm else ()
    needed = ("kv_cache_quant_algo", "exclude_modules") if algorithm == "MXFP8" else needed
    if nested and (missing := [name for name in needed if name not in settings]):
        raise Refused(f"{algorithm} needs {', '.join(missing)}")
    excluded = _Excluded(question, text_list(settings, key))
    lists = {key: excluded.exact}
    if algorithm == "MIXED_PRECISION":
        return _mixed(question, settings, excluded, lists)

    def judge(module: Module) -> Verdict:
        hit = excluded.entry(module.name)
        if hit is not None:
            return Verdict(quantized=False, entry=hit)
        if any(part in module.name for part in VISION):
            return Verdict(quantized=False, scheme="vision")
        if module.role in (LINEAR, HEAD, EXPERTS):
            return Verdict(quantized=True, scheme=algorithm)
        return PLAIN

    return Reader(judge, lists)


class _Excluded:
    """`is_layer_excluded`: the exact name or all shards, then substrings, then wildcards."""

    def __init__(self, question: Question, listed: list[str]) -> None:
        self.fused = question.structure.fused
        texts, written = [], []
        for text in listed:
            # a whole tree is written as `path*`: it is taken apart before the model renames it
            halves = (
                [text[:-1], f"{text[:-1]}.*"] if text.endswith("*") and len(text) > 1 and text[-2] != "." else [text]
            )
            texts += [question.structure.rename(half) for half in halves]
            written += [text] * len(halves)
        self.texts = texts
        self.exact = Entries(texts, equal, written=written)
        self.inside = Entries(texts, equal, written=written, keys=pieces(texts))
        self.wild = Entries(texts, glob, written=written, full=True)
        self.exact.uses = self.inside.uses = self.wild.uses

    def entry(self, name: str) -> str | None:
        if not self.texts:
            return None
        found = self.exact.first(name)
        names = shards(name, self.fused)
        if names is not None:
            found = found if found is not None else agreed(name, names, self.exact.first)
        elif "experts" in name:
            found = next((i for i, text in enumerate(self.texts) if "experts" in text and name in text), None)
        if found is None:
            found = self.inside.first(name)
        if found is None:
            found = self.wild.first(name)
        return None if found is None else self.exact.written[found]


def _mixed(question: Question, settings: Mapping[str, Any], excluded: _Excluded, lists: dict[str, Entries]) -> Reader:
    layers = settings.get("quantized_layers") or {}
    if not isinstance(layers, dict) or not layers:
        raise Refused("MIXED_PRECISION needs quantized_layers")
    algorithms: dict[str, str] = {}
    written: dict[str, str] = {}
    for name, given in layers.items():
        if not isinstance(given, dict) or not isinstance(given.get("quant_algo"), str):
            raise Refused(f"quantized_layers {name!r} names no quant_algo")
        renamed = question.structure.rename(name)
        algorithms[renamed], written[renamed] = given["quant_algo"].upper(), name
    lists = {**lists, "quantized_layers": (table := Entries(list(algorithms), equal, written=list(written.values())))}
    numbers = {name: number for number, name in enumerate(algorithms)}

    def met(names: list[str]) -> list[str]:
        found = [name for name in names if name in algorithms]
        for name in found:
            table.uses[numbers[name]].count += 1
        return found

    def same(name: str, found: list[str]) -> str | None:
        if len({algorithms[each] for each in found}) > 1:
            raise Refused(f"the shards of {name} get different algorithms")
        return found[0] if found else None

    def layer(name: str) -> str | None:
        """Return the entry that gives a module its algorithm (`_resolve_quant_algo`)."""
        if found := met(_spellings(name)):
            return found[0]
        base, _, last = name.rpartition(".")
        base = base or name
        if last in question.structure.fused:
            paths = [f"{each}.{shard}" for each in _spellings(base) for shard in question.structure.fused[last]]
            if (hit := same(name, met(paths))) is not None:
                return hit
        beginnings = [f"{each}." for each in _spellings(name)]
        if name.endswith(".experts"):
            beginnings.append(name.rsplit(".experts", 1)[0] + ".")
        for beginning in beginnings:
            if (hit := next((each for each in algorithms if each.startswith(beginning)), None)) is not None:
                met([hit])
                return hit
        plain = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}.get(last, ())
        for each in _spellings(name):
            parent = each.rsplit(".", 1)[0] + "."
            if (hit := same(name, met([f"{parent}{shard}" for shard in plain]))) is not None:
                return hit
        return None

    def judge(module: Module) -> Verdict:
        hit = excluded.entry(module.name)
        if hit is not None:
            return Verdict(quantized=False, entry=hit)
        if module.role not in (LINEAR, HEAD, EXPERTS, EMBEDDING):
            return PLAIN
        found = layer(module.name)
        if found is None or module.role == EMBEDDING:
            return PLAIN
        algorithm = algorithms[found]
        known = (*ALGORITHMS, "FP8_BLOCK_SCALES") if module.role == EXPERTS else ALGORITHMS
        if module.role == EXPERTS and algorithm == "FP8_PER_CHANNEL_PER_TOKEN":
            return PLAIN
        return Verdict(quantized=algorithm in known, scheme=algorithm, entry=written[found])

    return Reader(judge, lists)


def _spellings(name: str) -> list[str]:
    """Return the names under which a layer may stand in quantized_layers (`_quantized_layer_prefix_candidates`)."""
    found = [name]
    if name.endswith(".lm_head"):
        found.append("lm_head")
    if name.startswith("language_model.model."):
        found.append("model.language_model." + name.removeprefix("language_model.model."))
    elif name.startswith("model.language_model."):
        found.append("language_model.model." + name.removeprefix("model.language_model."))
    return found
