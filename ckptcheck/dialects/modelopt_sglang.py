"""ModelOpt configs in SGLang 0.5.23 (modelopt_quant.py): FP8, NVFP4, or MIXED_PRECISION with one algorithm per layer.

Unlike vLLM it tries an entry as a pattern on the whole name *and on each component*, so ``mlp`` excludes every module
below any ``mlp``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ckptcheck.dialects.base import EMBEDDING, EXPERTS, HEAD, LINEAR, Module, Question, Refused, Verdict
from ckptcheck.dialects.entries import Entries, dotted_glob, paths, within
from ckptcheck.dialects.fused import agreed, shards
from ckptcheck.dialects.reading import Reader, text_list

MLA = ("q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj")
FALLBACK = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}
LINEARS = ("FP8", "FP8_PB_WO", "FP8_BLOCK_SCALES", "MXFP8", "NVFP4", "W4A16_NVFP4")
PLAIN = Verdict(quantized=False)
LANGUAGE = "language_model."


def read(question: Question) -> Reader:
    """Read a config. Raises Refused where SGLang raises on it."""
    config = question.config
    nested = config.get("quant_algo") is None
    settings = config.get("quantization") if nested else config
    if not isinstance(settings, dict):
        raise Refused("quant_algo is missing")
    algorithm = settings.get("quant_algo")
    if algorithm not in ("FP8", "NVFP4", "NVFP4_AWQ", "W4A16_NVFP4", "MIXED_PRECISION"):
        raise Refused(f"quant_algo {algorithm} is not supported")
    keys = ("exclude_modules",) if nested else ("ignore", "modules_to_not_convert", "exclude_modules")
    if algorithm == "FP8":
        keys = keys[:1]
    key = next((each for each in keys if each in settings), keys[0])
    excluded = _Excluded(question, text_list(settings, key))
    lists = {key: excluded.whole}
    if algorithm == "MIXED_PRECISION":
        return _mixed(question, settings, excluded, lists)

    def judge(module: Module) -> Verdict:
        if module.role not in (LINEAR, HEAD, EXPERTS):
            return PLAIN
        hit = excluded.entry(module)
        return Verdict(quantized=hit is None, scheme=algorithm if hit is None else None, entry=hit)

    return Reader(judge, lists)


class _Excluded:
    """`is_layer_skipped` (not for fused experts), then `is_layer_excluded`."""

    def __init__(self, question: Question, listed: list[str]) -> None:
        self.fused = question.structure.fused
        renamed, written = [], []
        for text in listed:
            spellings = [question.structure.rename(text)]
            if question.structure.rename is not str and spellings[0].startswith(LANGUAGE):
                spellings.append(spellings[0].removeprefix(LANGUAGE))
            renamed += spellings
            written += [text] * len(spellings)
        self.texts = renamed
        self.paths = Entries(renamed, within, written=written, keys=paths)
        self.whole = Entries(renamed, dotted_glob, written=written, full=True, like_regex=True)
        self.paths.uses = self.whole.uses

    def entry(self, module: Module) -> str | None:
        name, hit = module.name, None
        if module.role != EXPERTS:
            hit = self._skipped(name)
        if hit is None:
            hit = self._excluded(name)
        return None if hit is None else self.whole.written[hit]

    def _skipped(self, name: str) -> int | None:
        names = shards(name, self.fused if name.rsplit(".", 1)[-1] in self.fused else FALLBACK)
        if names is not None:
            return agreed(name, names, self.paths.first)
        hit = self.paths.first(name)
        if hit is None and "gate_up_proj" in name:
            both = [name.replace("gate_up_proj", shard) for shard in ("gate_proj", "up_proj")]
            hit = self.texts.index(both[0]) if all(each in self.texts for each in both) else None
        elif hit is None and "experts" in name:
            hit = next((i for i, text in enumerate(self.texts) if "experts" in text and name in text), None)
        return hit

    def _excluded(self, name: str) -> int | None:
        names = [name, *([name.removeprefix(LANGUAGE)] if name.startswith(LANGUAGE) else [])]
        tried = list(dict.fromkeys(part for each in names for part in (each, *each.split("."))))
        last = name.rsplit(".", 1)[-1]
        tails = (i for i, text in enumerate(self.texts) if (tail := text.rsplit(".", 1)[-1]) in MLA and tail in last)
        number = min([*(hit for each in tried for hit in self.whole.hits(each)), *tails], default=None)
        self.whole.until(number)
        return number


def _mixed(question: Question, settings: Mapping[str, Any], excluded: _Excluded, lists: dict[str, Entries]) -> Reader:
    layers = settings.get("quantized_layers") or {}
    if not isinstance(layers, dict) or not layers:
        raise Refused("MIXED_PRECISION needs quantized_layers")
    algorithms, written = {}, {}
    for name, given in layers.items():
        if not isinstance(given, dict) or not isinstance(given.get("quant_algo"), str):
            raise Refused(f"quantized_layers {name!r} names no quant_algo")
        renamed = question.structure.rename(name)
        algorithms[renamed], written[renamed] = given["quant_algo"].upper(), name
    table = Entries(list(algorithms), within, written=list(written.values()))
    numbers = {name: number for number, name in enumerate(algorithms)}

    def met(name: str) -> str:
        table.uses[numbers[name]].count += 1
        return name

    def layer(name: str) -> str | None:
        """Return the entry that gives a module its algorithm (`_resolve_quant_algo`)."""
        for each in _spellings(name):
            if each in algorithms:
                return met(each)
        base, _, last = name.rpartition(".")
        if last in question.structure.fused:
            tried = (f"{each}.{s}" for each in _spellings(base or name) for s in question.structure.fused[last])
            found = [met(each) for each in tried if each in algorithms]
            if len({algorithms[each] for each in found}) > 1:
                raise Refused(f"the shards of {name} get different algorithms")
            if found:
                return found[0]
        for each in _spellings(name):
            if (hit := next((key for key in algorithms if key.startswith(f"{each}.")), None)) is not None:
                return met(hit)
        return None

    def judge(module: Module) -> Verdict:
        if module.role not in (LINEAR, HEAD, EXPERTS, EMBEDDING):
            return PLAIN
        found = layer(module.name)
        hit = excluded.entry(module)
        if hit is not None or found is None:
            return Verdict(quantized=False, entry=hit)
        known = ("NVFP4",) if module.role == EMBEDDING else LINEARS
        return Verdict(quantized=algorithms[found] in known, scheme=algorithms[found], entry=written[found])

    return Reader(judge, {**lists, "quantized_layers": table})


def _spellings(name: str) -> list[str]:
    """Return the names under which a layer may stand in quantized_layers (`_quantized_layer_prefix_candidates`)."""
    found = [name]
    if name.endswith(".lm_head"):
        found.append("lm_head")
    inner, outer = "language_model.model.", "model.language_model."
    if name.startswith(inner):
        found.append(outer + name.removeprefix(inner))
    elif name.startswith(outer):
        found += [inner + name.removeprefix(outer), "model." + name.removeprefix(outer)]
    elif name.startswith("model."):
        found.append(outer + name.removeprefix("model."))
    return found
