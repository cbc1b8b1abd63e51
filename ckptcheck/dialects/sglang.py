"""SGLang 0.5.23 on CUDA: which modules it builds quantized.

Source: sglang/srt/layers/quantization/ (compressed_tensors/, fp8.py, gptq/, awq/, modelopt_quant.py, quark/, mxfp4.py,
bitsandbytes.py, utils.py). The fused mapping is the model class's ``packed_modules_mapping``, which many lack.
Not modelled: what a GPU or a shape rules out after the name was judged.
"""

from __future__ import annotations

from collections.abc import Callable

from ckptcheck.dialects import modelopt_sglang
from ckptcheck.dialects.base import EXPERTS, HEAD, LINEAR, Module, Question, Refused, Unknown, Verdict
from ckptcheck.dialects.entries import Entries, Rule, equal, equal_or_regex, paths, pieces, suffixes, within
from ckptcheck.dialects.fused import Fused, agreed, by_suffix, shards
from ckptcheck.dialects.gptq import overrides
from ckptcheck.dialects.groups import Scheme, ignored, targets
from ckptcheck.dialects.reading import Reader, text_list

NAME, VERSION = "sglang", "0.5.23"
PLAIN = Verdict(quantized=False)
FALLBACK = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}
"""What fp8 takes to be fused where the model does not say (`_FALLBACK_FUSED_SHARDS`)."""


def read(question: Question) -> Reader:
    """Read a config. Raises Refused where SGLang raises on it, Unknown for a method that is not modelled."""
    builders: dict[str, Callable[[Question], Reader]] = {
        "compressed-tensors": _compressed_tensors,
        "fp8": _fp8,
        "gptq": _gptq,
        "awq": _awq,
        "modelopt": modelopt_sglang.read,
        "quark": _quark,
        "mxfp4": _mxfp4,
        "bitsandbytes": _bitsandbytes,
    }
    method = "modelopt" if question.method.startswith("modelopt") else question.method
    if method not in builders:
        raise Unknown(f"what SGLang makes of {method} is not known to ckptcheck")
    return builders[method](question)


def _compressed_tensors(question: Question) -> Reader:
    config, structure = question.config, question.structure
    if "linear_fp8_config" in config:
        raise Unknown("linear_fp8_config is not known to ckptcheck")
    schemes = targets(config)
    written = ignored(config)
    renamed = [structure.rename(text) if isinstance(text, str) else text for text in written]
    ignore = Entries(renamed, equal_or_regex, written=written, keys=suffixes)
    named: dict[str, tuple[str, Scheme]] = {structure.rename(name): (name, each) for name, each in schemes.items()}
    wanted = list(named)
    texts = [named[name][0] for name in wanted]
    target = Entries(wanted, equal_or_regex, written=texts)
    headed = Entries(wanted, equal_or_regex, written=texts, keys=suffixes)
    of_class = Entries(wanted, _regex_only, written=texts)
    headed.uses = of_class.uses = target.uses
    mxfp4 = "mxfp4" in str(config.get("format") or "") or any(
        _is_mxfp4(named[name][1]) for name in ("FusedMoE", "Linear") if name in named
    )

    def scheme(name: str, kind: str) -> tuple[int | None, int | None]:
        """Return the entry that ignores a name, else the target that it gets. Raises Refused where none fits."""
        hit = _ignored(ignore, name, structure.fused)
        if hit is not None or not wanted:
            return hit, None
        found = target.first(name)
        if found is None:
            found = _first_class(kind)
            if found is not None and not wanted[found]:
                found = None  # an empty target is in every class, and is then taken for no answer
        if found is None and (names := by_suffix(name, structure.fused)) is not None:
            matches = [target.first(shard) for shard in names]
            found = matches[0] if matches and None not in matches else None
        if found is None:
            raise Refused(f"no target matches {name}, and it is not ignored")
        return None, found

    def _first_class(kind: str) -> int | None:
        matched = of_class.first(kind)
        for number, text in enumerate(wanted):
            if number == matched or (not text.startswith("re:") and text.lower() in kind.lower()):
                target.met(texts[number])
                return number
        return None

    def judge(module: Module) -> Verdict:
        if module.role == EXPERTS:
            return _experts(module)
        if module.role == HEAD:
            return _head(module)
        if module.role != LINEAR:
            return PLAIN
        hit, found = scheme(module.name, module.kind)
        if found is None:
            return Verdict(quantized=False, entry=None if hit is None else ignore.written[hit])
        return Verdict(quantized=True, scheme=texts[found], entry=texts[found])

    def _head(module: Module) -> Verdict:
        if not wanted:
            return PLAIN
        hit = _ignored(ignore, module.name, structure.fused)
        found = headed.first(module.name) if hit is None else None
        if found is None:
            return Verdict(quantized=False, entry=None if hit is None else ignore.written[hit])
        if dict(named[wanted[found]][1][0])["block_structure"] not in ("None", "[]"):
            raise Refused("it does not quantize a head by blocks")
        return Verdict(quantized=True, scheme=texts[found], entry=texts[found])

    def _experts(module: Module) -> Verdict:
        if mxfp4:  # decided before anything is asked about names
            return Verdict(quantized=True, scheme="mxfp4")
        if "Linear" in named and "FusedMoE" not in named:
            for kind in ("FusedMoE", "DeepEPMoE"):
                if kind not in named:
                    wanted.append(kind)
                    texts.append(named["Linear"][0])
                named[kind] = named["Linear"]
        found = [scheme(f"{module.name}.0.{shard}", module.kind) for shard in ("gate_proj", "up_proj", "down_proj")]
        meant = [None if number is None else named[wanted[number]][1] for _, number in found]
        if any(each != meant[0] for each in meant):
            raise Refused(f"the projections of {module.name} get different schemes")
        hit, number = found[0]
        if number is None:
            return Verdict(quantized=False, entry=None if hit is None else ignore.written[hit])
        return Verdict(quantized=True, scheme=texts[number], entry=texts[number])

    return Reader(judge, {"ignore": ignore, "targets": target})


def _regex_only(text: str) -> Rule:
    """Keep the regexes of a list of targets: they are matched with the class too."""
    rule = equal_or_regex(text)
    return rule if rule.pattern is not None else Rule()


def _is_mxfp4(scheme: Scheme) -> bool:
    values = dict(scheme[0])
    wanted = {"num_bits": "4", "type": "'float'", "strategy": "'group'", "group_size": "32", "symmetric": "True"}
    return all(values[name] == value for name, value in wanted.items())


def _ignored(ignore: Entries, name: str, fused: Fused) -> int | None:
    """Return the entry that ignores a name. Of a fused one only its shards count, unless the list has it literally."""
    names = shards(name, fused)
    if names is None or name in ignore.texts:
        return ignore.first(name)
    return agreed(name, names, ignore.first)


def _fp8(question: Question) -> Reader:
    config, structure = question.config, question.structure
    if config.get("activation_scheme") not in ("static", "dynamic"):
        raise Refused("activation_scheme is neither static nor dynamic")
    if config.get("weight_block_size") is not None and config["activation_scheme"] != "dynamic":
        raise Refused("blocks need a dynamic activation_scheme")
    key = "ignored_layers" if "ignored_layers" in config else "modules_to_not_convert"
    listed = text_list(config, key)
    written, texts = [], []
    for text in listed:  # both spellings are kept, whichever the model has
        for spelling in (text.removeprefix("model."), f"model.{text.removeprefix('model.')}"):
            written.append(text)
            texts.append(structure.rename(spelling))
    entries = Entries(texts, within, written=written, keys=paths)

    def judge(module: Module) -> Verdict:
        if module.role not in (LINEAR, EXPERTS):
            return PLAIN
        hit = _skipped(entries, module.name, structure.fused)
        return Verdict(quantized=hit is None, entry=None if hit is None else entries.written[hit])

    return Reader(judge, {key: entries})


def _skipped(entries: Entries, name: str, fused: Fused) -> int | None:
    """Return the entry for which `is_layer_skipped` says yes."""
    last = name.rsplit(".", 1)[-1]
    mapping = fused if last in fused else FALLBACK
    names = shards(name, mapping)
    if names is not None:
        return agreed(name, names, entries.first)
    hit = entries.first(name)
    if "gate_up_proj" in name:
        both = [name.replace("gate_up_proj", shard) for shard in ("gate_proj", "up_proj")]
        if hit is None and all(each in entries.texts for each in both):
            hit = entries.texts.index(both[0])
    elif "experts" in name and hit is None:
        hit = next((i for i, text in enumerate(entries.texts) if "experts" in text and name in text), None)
    return hit


def _gptq(question: Question) -> Reader:
    size = question.config.get("group_size")
    chosen = overrides(question, NAME)
    if size not in (-1, 32, 64, 128):
        raise Refused(f"group_size={size} has no kernel")

    def judge(module: Module) -> Verdict:
        if module.role == EXPERTS:  # whatever `dynamic` says
            return Verdict(quantized=True)
        if module.role != LINEAR and not (module.role == HEAD and question.config.get("lm_head")):
            return PLAIN
        return chosen.judge(module.name)

    return Reader(judge, {"dynamic": chosen.entries})


def _awq(question: Question) -> Reader:
    config = question.config
    for key in ("bits", "group_size", "zero_point"):
        if key not in config:
            raise Unknown(f"without {key} SGLang takes its slower kernel")
    if config["bits"] not in (4, 8):
        raise Refused("only 4 and 8 bits are supported")
    texts = text_list(config, "modules_to_not_convert")
    entries = Entries(texts, equal, keys=pieces(texts))

    def judge(module: Module) -> Verdict:
        if module.role not in (LINEAR, EXPERTS) and not (module.role == HEAD and config.get("lm_head")):
            return PLAIN
        hit = entries.first(module.name)
        return Verdict(quantized=hit is None, entry=None if hit is None else entries.written[hit])

    return Reader(judge, {"modules_to_not_convert": entries})


def _quark(question: Question) -> Reader:
    structure = question.structure
    written = ignored(question.config, "exclude")
    renamed, originals = [], []
    for text in written:
        if not isinstance(text, str):
            raise Unknown("exclude holds more than strings")
        spellings = [structure.rename(text)]
        if structure.rename is not str and spellings[0].startswith("language_model."):
            spellings.append(spellings[0].removeprefix("language_model."))
        renamed += spellings
        originals += [text] * len(spellings)
    entries = Entries(renamed, equal_or_regex, written=originals)

    def judge(module: Module) -> Verdict:
        name = module.name
        hit = entries.first(name)
        if hit is None and name.endswith(".experts"):
            hit = next((i for i, text in enumerate(renamed) if text.startswith(f"{name}.")), None)
        if hit is None and (names := shards(name, structure.fused)) is not None:
            hit = agreed(name, names, entries.first)
        if module.role not in (LINEAR, EXPERTS):  # only after it was looked up
            return PLAIN
        return Verdict(quantized=hit is None, entry=None if hit is None else entries.written[hit])

    return Reader(judge, {"exclude": entries})


def _mxfp4(question: Question) -> Reader:
    def judge(module: Module) -> Verdict:
        if module.role not in (LINEAR, EXPERTS):
            raise Refused("it has no MXFP4 for anything but experts")
        return Verdict(quantized=module.role == EXPERTS)

    return Reader(judge, {})


def _bitsandbytes(question: Question) -> Reader:
    listed = text_list(question.config, "llm_int8_skip_modules")
    entries = Entries(listed, equal, keys=_parts_and_beginnings)

    def judge(module: Module) -> Verdict:
        if module.role == EXPERTS:
            return Verdict(quantized=True)
        if module.role != LINEAR:
            return PLAIN
        hit = entries.first(module.name)
        return Verdict(quantized=hit is None, entry=None if hit is None else entries.written[hit])

    return Reader(judge, {"llm_int8_skip_modules": entries})


def _parts_and_beginnings(name: str) -> set[str]:
    """Return each component of a name and each of its dotted beginnings."""
    parts = name.split(".")
    return {*parts, *(".".join(parts[: i + 1]) for i in range(len(parts)))}
