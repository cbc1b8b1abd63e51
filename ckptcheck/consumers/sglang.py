"""Decides which modules SGLang 0.5.23 builds quantized on CUDA.

Source: sglang/srt/layers/quantization/ (compressed_tensors/, fp8.py, gptq/, awq/, modelopt_quant.py, quark/, mxfp4.py,
bitsandbytes.py, utils.py). The fused mapping is the model class's ``packed_modules_mapping``, which many lack.
Not modelled: refusals because of the GPU or a shape, after the lookup by name.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ckptcheck.consumers import modelopt
from ckptcheck.consumers.base import (
    EXPERTS,
    HEAD,
    LINEAR,
    UNQUANTIZED,
    ConsumerError,
    ConsumerInput,
    Decision,
    Module,
    UnknownBehavior,
)
from ckptcheck.consumers.config_lists import Scheme, Targets, read_ignore_list, read_targets, read_text_list
from ckptcheck.consumers.consumer import Consumer, QuantizationPolicy
from ckptcheck.consumers.entries import (
    EntryList,
    FusedModules,
    expand_fused,
    find_skipped_by_sglang,
    make_substring_keys,
    parse_exact,
    parse_exact_or_regex,
    parse_path,
    require_agreement,
    split_component_runs,
    split_dotted_suffixes,
)
from ckptcheck.consumers.gptq import read_overrides
from ckptcheck.consumers.structures import StructureTable

VERSION = "0.5.23"


def read_config(request: ConsumerInput) -> QuantizationPolicy:
    """Read a config. Raises ConsumerError if SGLang raises on it, UnknownBehavior for a method that ckptcheck does not model."""
    builders: dict[str, Callable[[ConsumerInput], QuantizationPolicy]] = {
        "compressed-tensors": _read_compressed_tensors,
        "fp8": _read_fp8,
        "gptq": _read_gptq,
        "awq": _read_awq,
        "modelopt": modelopt.read_by_sglang,
        "quark": _read_quark,
        "mxfp4": _read_mxfp4,
        "bitsandbytes": _read_bitsandbytes,
    }
    method = "modelopt" if request.method.startswith("modelopt") else request.method
    if method not in builders:
        raise UnknownBehavior(f"what SGLang makes of {method} is not known to ckptcheck")
    return builders[method](request)


def _read_compressed_tensors(request: ConsumerInput) -> QuantizationPolicy:
    config, structure = request.config, request.structure
    if "linear_fp8_config" in config:
        raise UnknownBehavior("linear_fp8_config is not known to ckptcheck")
    originals = read_ignore_list(config)
    renamed = [structure.rename(text) if isinstance(text, str) else text for text in originals]
    ignore = EntryList(renamed, parse_exact_or_regex, originals=originals, keys=split_dotted_suffixes)
    targets = Targets(read_targets(config), structure.rename)
    head_target = EntryList(
        targets.names, parse_exact_or_regex, originals=targets.originals, keys=split_dotted_suffixes
    )
    head_target.usages = targets.entries.usages
    mxfp4 = "mxfp4" in str(config.get("format") or "") or any(
        _is_mxfp4(scheme)
        for name, scheme in zip(targets.names, targets.schemes, strict=True)
        if name in ("FusedMoE", "Linear")
    )

    def find_scheme(name: str, class_name: str) -> tuple[int | None, int | None]:
        """Return the entry that ignores a name, else the target that it gets. Raises ConsumerError if no target fits."""
        hit = _find_ignoring_entry(ignore, name, structure.fused_modules)
        if hit is not None or not targets.names:
            return hit, None
        number = targets.entries.first_match(name)
        if number is None:
            number = targets.find_by_class(class_name)
            # an empty target is a substring of every class name, and SGLang then treats the empty match as no match
            if number is not None and not targets.names[number]:
                number = None
        if number is None:
            number = targets.find_by_shards(name, structure.fused_modules)
        if number is None:
            raise ConsumerError(f"no target matches {name}, and it is not ignored")
        return None, number

    def decide(module: Module) -> Decision:
        if module.role == EXPERTS:
            return _decide_experts(module)
        if module.role == HEAD:
            return _decide_head(module)
        if module.role != LINEAR:
            return UNQUANTIZED
        hit, number = find_scheme(module.name, module.class_name)
        return Decision(quantized=False, entry=ignore.original(hit)) if number is None else targets.decide(number)

    def _decide_head(module: Module) -> Decision:
        if not targets.names:
            return UNQUANTIZED
        hit = _find_ignoring_entry(ignore, module.name, structure.fused_modules)
        number = head_target.first_match(module.name) if hit is None else None
        if number is None:
            return Decision(quantized=False, entry=ignore.original(hit))
        if dict(targets.schemes[number][0])["block_structure"] not in ("None", "[]"):
            raise ConsumerError("it does not quantize a head by blocks")
        return targets.decide(number)

    def _decide_experts(module: Module) -> Decision:
        # SGLang decides this before it looks at names
        if mxfp4:
            return Decision(quantized=True, scheme="mxfp4")
        if "Linear" in targets.names and "FusedMoE" not in targets.names:
            targets.copy_linear("FusedMoE", "DeepEPMoE")
        choices = [
            find_scheme(f"{module.name}.0.{shard}", module.class_name)
            for shard in ("gate_proj", "up_proj", "down_proj")
        ]
        targets.require_one_scheme(module, [number for _, number in choices])
        hit, number = choices[0]
        return Decision(quantized=False, entry=ignore.original(hit)) if number is None else targets.decide(number)

    return QuantizationPolicy(decide, {"ignore": ignore, "targets": targets.entries})


def _is_mxfp4(scheme: Scheme) -> bool:
    values = dict(scheme[0])
    mxfp4 = {"num_bits": "4", "type": "'float'", "strategy": "'group'", "group_size": "32", "symmetric": "True"}
    return all(values[name] == value for name, value in mxfp4.items())


def _find_ignoring_entry(ignore: EntryList, name: str, fused: FusedModules) -> int | None:
    """Return the entry that ignores a name. For a fused module only its shards count, unless the list has its own name."""
    names = expand_fused(name, fused)
    if names is None or name in ignore.texts:
        return ignore.first_match(name)
    return require_agreement(name, names, ignore.first_match)


def _read_fp8(request: ConsumerInput) -> QuantizationPolicy:
    config, structure = request.config, request.structure
    if config.get("activation_scheme") not in ("static", "dynamic"):
        raise ConsumerError("activation_scheme is neither static nor dynamic")
    if config.get("weight_block_size") is not None and config["activation_scheme"] != "dynamic":
        raise ConsumerError("blocks need a dynamic activation_scheme")
    key = "ignored_layers" if "ignored_layers" in config else "modules_to_not_convert"
    listed = read_text_list(config, key)
    originals, texts = [], []
    # SGLang keeps both spellings, whichever the model has
    for text in listed:
        for spelling in (text.removeprefix("model."), f"model.{text.removeprefix('model.')}"):
            originals.append(text)
            texts.append(structure.rename(spelling))
    entries = EntryList(texts, parse_path, originals=originals, keys=split_component_runs)

    def decide(module: Module) -> Decision:
        if module.role not in (LINEAR, EXPERTS):
            return UNQUANTIZED
        hit = find_skipped_by_sglang(entries, module.name, structure.fused_modules)
        return Decision(quantized=hit is None, entry=entries.original(hit))

    return QuantizationPolicy(decide, {key: entries})


def _read_gptq(request: ConsumerInput) -> QuantizationPolicy:
    size = request.config.get("group_size")
    dynamic = read_overrides(request)
    if size not in (-1, 32, 64, 128):
        raise ConsumerError(f"group_size={size} has no kernel")

    def decide(module: Module) -> Decision:
        # SGLang quantizes experts whatever `dynamic` says
        if module.role == EXPERTS:
            return Decision(quantized=True)
        if module.role != LINEAR and not (module.role == HEAD and request.config.get("lm_head")):
            return UNQUANTIZED
        return dynamic.decide(module.name)

    return QuantizationPolicy(decide, {"dynamic": dynamic.entries})


def _read_awq(request: ConsumerInput) -> QuantizationPolicy:
    config = request.config
    for key in ("bits", "group_size", "zero_point"):
        if key not in config:
            raise UnknownBehavior(f"without {key} SGLang takes its slower kernel")
    if config["bits"] not in (4, 8):
        raise ConsumerError("only 4 and 8 bits are supported")
    texts = read_text_list(config, "modules_to_not_convert")
    entries = EntryList(texts, parse_exact, keys=make_substring_keys(texts))

    def decide(module: Module) -> Decision:
        if module.role not in (LINEAR, EXPERTS) and not (module.role == HEAD and config.get("lm_head")):
            return UNQUANTIZED
        hit = entries.first_match(module.name)
        return Decision(quantized=hit is None, entry=entries.original(hit))

    return QuantizationPolicy(decide, {"modules_to_not_convert": entries})


def _read_quark(request: ConsumerInput) -> QuantizationPolicy:
    structure = request.structure
    listed = read_ignore_list(request.config, "exclude")
    renamed, originals = [], []
    for text in listed:
        if not isinstance(text, str):
            raise UnknownBehavior("exclude holds more than strings")
        spellings = [structure.rename(text)]
        if structure.rename is not str and spellings[0].startswith("language_model."):
            spellings.append(spellings[0].removeprefix("language_model."))
        renamed += spellings
        originals += [text] * len(spellings)
    entries = EntryList(renamed, parse_exact_or_regex, originals=originals)

    def decide(module: Module) -> Decision:
        name = module.name
        hit = entries.first_match(name)
        if hit is None and name.endswith(".experts"):
            hit = next((i for i, text in enumerate(renamed) if text.startswith(f"{name}.")), None)
        if hit is None and (names := expand_fused(name, structure.fused_modules)) is not None:
            hit = require_agreement(name, names, entries.first_match)
        # SGLang looks the name up first, and may raise there
        if module.role not in (LINEAR, EXPERTS):
            return UNQUANTIZED
        return Decision(quantized=hit is None, entry=entries.original(hit))

    return QuantizationPolicy(decide, {"exclude": entries})


def _read_mxfp4(request: ConsumerInput) -> QuantizationPolicy:
    def decide(module: Module) -> Decision:
        if module.role not in (LINEAR, EXPERTS):
            raise ConsumerError("it supports MXFP4 for experts only")
        return Decision(quantized=module.role == EXPERTS)

    return QuantizationPolicy(decide, {})


def _read_bitsandbytes(request: ConsumerInput) -> QuantizationPolicy:
    listed = read_text_list(request.config, "llm_int8_skip_modules")
    entries = EntryList(listed, parse_exact, keys=_list_parts_and_prefixes)

    def decide(module: Module) -> Decision:
        if module.role == EXPERTS:
            # SGLang's bitsandbytes method for experts lacks 8 bits, and its loader does not load stored 4-bit states into them
            raise UnknownBehavior("its loader has no place for experts of bitsandbytes, however they are stored")
        if module.role != LINEAR:
            return UNQUANTIZED
        hit = entries.first_match(module.name)
        return Decision(quantized=hit is None, entry=entries.original(hit))

    return QuantizationPolicy(decide, {"llm_int8_skip_modules": entries})


def _list_parts_and_prefixes(name: str) -> set[str]:
    """Return each component of a name and each of its dotted beginnings."""
    parts = name.split(".")
    return {*parts, *(".".join(parts[: i + 1]) for i in range(len(parts)))}


SGLANG = Consumer(
    name="sglang",
    title="SGLang",
    version=VERSION,
    read_config=read_config,
    structures=StructureTable(Path(__file__).with_name("sglang.json"), experts_class="FusedMoE", renames_once=True),
    # most models do, with a warning (Llama) or silently (Qwen3-MoE); the table lists the models that raise
    missing_parameter_effect="drops {tensor} and computes with uninitialised memory",
    guessed_parameter_effect="has no place for {tensor}, and stops or computes with uninitialised memory",
    is_default=True,
    weight_files=lambda ckpt: ckpt.globbed_files,
    sync_effect="ignores these tensors",
)
