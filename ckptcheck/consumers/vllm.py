"""Decides which modules vLLM 0.32.0 builds quantized.

Source: vllm/model_executor/layers/quantization/ (compressed_tensors/, fp8.py, auto_gptq.py, auto_awq.py, modelopt.py,
quark/, mxfp4.py) and the list helpers in utils/. The model's ``hf_to_vllm_mapper`` first renames a config's entries.
Not modelled: refusals because of the GPU or a shape, after the lookup by name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from ckptcheck.consumers import modelopt
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
    UnknownBehavior,
)
from ckptcheck.consumers.config_lists import Scheme, read_ignore_list, read_targets, read_text_list
from ckptcheck.consumers.consumer import Consumer, QuantizationPolicy
from ckptcheck.consumers.entries import (
    EntryList,
    make_substring_keys,
    parse_exact,
    parse_exact_or_regex,
    parse_regex_only,
)
from ckptcheck.consumers.fused import (
    FusedModules,
    expand_by_suffix,
    expand_fused,
    find_skipped_by_vllm,
    require_agreement,
)
from ckptcheck.consumers.gptq import read_overrides
from ckptcheck.consumers.structures import StructureTable

VERSION = "0.32.0"


def read_config(request: ConsumerInput) -> QuantizationPolicy:
    """Read a config. Raises ConsumerError if vLLM raises on it, UnknownBehavior for a method that ckptcheck does not model."""
    builders: dict[str, Callable[[ConsumerInput], QuantizationPolicy]] = {
        "compressed-tensors": _read_compressed_tensors,
        "fp8": _read_fp8,
        "gptq": _read_gptq,
        "awq": _read_awq,
        "modelopt": modelopt.read_by_vllm,
        "quark": _read_quark,
        "mxfp4": _read_mxfp4,
    }
    method = "modelopt" if request.method.startswith("modelopt") else request.method
    if method in ("bitsandbytes", "gguf"):
        raise ConsumerError(f"vLLM {VERSION} has no quantization method {method}")
    if method not in builders:
        raise UnknownBehavior(f"what vLLM makes of {method} is not known to ckptcheck")
    return builders[method](request)


def _read_compressed_tensors(request: ConsumerInput) -> QuantizationPolicy:
    config, structure = request.config, request.structure
    if (config.get("sparsity_config") or {}).get("targets"):
        raise ConsumerError("sparsity_config is no longer supported")
    schemes = read_targets(config, vllm=True)

    def rename(text: object) -> object:
        path = isinstance(text, str) and "." in text and not text.startswith("re:")
        return structure.rename(text) if path and isinstance(text, str) else text

    originals = read_ignore_list(config)
    ignore = EntryList([rename(text) for text in originals], parse_exact_or_regex, originals=originals, like_regex=True)
    schemes_by_name: dict[str, tuple[str, Scheme]] = {
        str(rename(name)): (name, scheme) for name, scheme in schemes.items()
    }
    target_names = list(schemes_by_name)
    target = EntryList(
        target_names,
        parse_exact_or_regex,
        originals=[schemes_by_name[name][0] for name in target_names],
        like_regex=True,
    )
    class_patterns = EntryList(target_names, parse_regex_only, originals=target.originals, like_regex=True)

    def find_scheme(name: str, class_name: str) -> tuple[int | None, int | None]:
        """Return the entry that ignores a name, else the target that it gets."""
        hit = _find_ignoring_entry(ignore, name, structure.fused_modules)
        return (hit, None) if hit is not None else (None, _find_target(name, class_name))

    def _find_target(name: str, class_name: str) -> int | None:
        number = target.first_match(name)
        if number is None and (names := expand_by_suffix(name, structure.fused_modules)) is not None:
            numbers = [target.first_match(shard) for shard in names]
            number = numbers[0] if numbers and None not in numbers else None
        if number is None:
            number = _find_class_target(target_names, class_patterns, class_name)
            if number is not None:
                target.record_match(schemes_by_name[target_names[number]][0])
        return number

    def decide(module: Module) -> Decision:
        if module.role == EXPERTS:
            return _decide_experts(module)
        if module.role not in (LINEAR, HEAD, EMBEDDING):
            return UNQUANTIZED
        hit, number = find_scheme(module.name, module.class_name)
        if hit is not None:
            return Decision(quantized=False, entry=ignore.originals[hit])
        if number is None:
            return UNQUANTIZED
        name, values = schemes_by_name[target_names[number]]
        if module.role == EMBEDDING and not _is_packable(values):
            raise ConsumerError("it only quantizes an embedding to integers by group or channel, without activations")
        return Decision(quantized=True, scheme=name, entry=name)

    def _decide_experts(module: Module) -> Decision:
        if "Linear" in schemes_by_name and "RoutedExperts" not in schemes_by_name:
            schemes_by_name["RoutedExperts"] = schemes_by_name["Linear"]
            target_names.append("RoutedExperts")
        choices = [find_scheme(f"{module.name}.0.{shard}", "RoutedExperts") for shard in module.expert_projections]
        chosen_schemes = [None if number is None else schemes_by_name[target_names[number]][1] for _, number in choices]
        if any(each != chosen_schemes[0] for each in chosen_schemes):
            raise ConsumerError(f"the projections of {module.name} get different schemes")
        hit, number = choices[-1]
        if number is None:
            return Decision(quantized=False, entry=ignore.original(hit))
        return Decision(
            quantized=True,
            scheme=schemes_by_name[target_names[number]][0],
            entry=schemes_by_name[target_names[number]][0],
        )

    return QuantizationPolicy(decide, {"ignore": ignore, "targets": target})


def _find_class_target(target_names: Sequence[str], regexes: EntryList, class_name: str) -> int | None:
    """Return the first target that the class contains, in any case, or that is a regex matching it."""
    by_regex = regexes.first_match(class_name)
    for number, text in enumerate(target_names):
        if number == by_regex or (not text.startswith("re:") and text.lower() in class_name.lower()):
            return number
    return None


def _is_packable(scheme: Scheme) -> bool:
    weights, activations, _ = scheme
    values = dict(weights)
    return activations is None and values["type"] == "'int'" and values["strategy"] in ("'group'", "'channel'")


def _find_ignoring_entry(ignore: EntryList, name: str, fused: FusedModules) -> int | None:
    """Return the entry that ignores a name: directly, or all shards of a fused one alike."""
    direct = ignore.all_matches(name)
    if direct:
        return direct[0]
    names = expand_fused(name, fused)
    return (
        None
        if names is None
        else require_agreement(name, names, lambda shard: next(iter(ignore.all_matches(shard)), None))
    )


def _read_fp8(request: ConsumerInput) -> QuantizationPolicy:
    config, structure = request.config, request.structure
    scheme = config.get("activation_scheme")
    if scheme not in ("static", "dynamic"):
        raise ConsumerError("activation_scheme is neither static nor dynamic")
    if config.get("weight_block_size") is not None and scheme != "dynamic":
        raise ConsumerError("blocks need a dynamic activation_scheme")
    key = "ignored_layers" if config.get("ignored_layers") else "modules_to_not_convert"
    originals = read_text_list(config, key)
    entries = EntryList([structure.rename(text) for text in originals], parse_exact, originals=originals)

    def decide(module: Module) -> Decision:
        if module.role not in (LINEAR, EXPERTS):
            return UNQUANTIZED
        hit = find_skipped_by_vllm(entries, module.name, structure.fused_modules, exact=True)
        return Decision(quantized=hit is None, entry=entries.original(hit))

    return QuantizationPolicy(decide, {key: entries})


def _read_gptq(request: ConsumerInput) -> QuantizationPolicy:
    config, structure = request.config, request.structure
    dynamic = read_overrides(request, like_regex=True, refuses_grouped_order=True)
    listed: list[object] = []

    def flatten(value: object) -> None:
        for each in value if isinstance(value, list) else [value]:
            flatten(each) if isinstance(each, list) else listed.append(each)

    flatten(config.get("modules_in_block_to_quantize") or [])
    if not all(isinstance(each, str) for each in listed):
        raise ConsumerError("modules_in_block_to_quantize holds more than strings")
    has_list = bool(config.get("modules_in_block_to_quantize"))
    if not has_list and request.packed is None:
        raise UnknownBehavior("vLLM takes what is quantized from the dtypes on disk")
    texts = [structure.rename(str(each)) for each in (listed if has_list else sorted(request.packed or ()))]
    entries = EntryList(texts, parse_exact, originals=listed or texts, keys=make_substring_keys(texts))

    def decide(module: Module) -> Decision:
        if module.role == EXPERTS:
            return dynamic.decide(module.name)
        if module.role != LINEAR and not (module.role == HEAD and config.get("lm_head")):
            return UNQUANTIZED
        if texts:
            names = expand_fused(module.name, structure.fused_modules)
            hit = (
                entries.first_match(module.name)
                if names is None
                else require_agreement(module.name, names, entries.first_match)
            )
            if hit is None:
                # vLLM still looks the name up, and raises on an entry that is no regex
                dynamic.entries.first_match(module.name)
                return UNQUANTIZED
        return dynamic.decide(module.name)

    lists = {"dynamic": dynamic.entries}
    return QuantizationPolicy(decide, {**lists, "modules_in_block_to_quantize": entries} if listed else lists)


def _read_awq(request: ConsumerInput) -> QuantizationPolicy:
    config, structure = request.config, request.structure
    if config.get("w_bit", config.get("bits")) != 4:
        raise ConsumerError("only 4 bits are supported")
    if "zero_point" not in config or not {"q_group_size", "group_size"} & config.keys():
        raise ConsumerError("zero_point or group_size is missing")
    originals = read_text_list(config, "modules_to_not_convert")
    if not originals and request.plain is None:
        raise UnknownBehavior("vLLM takes what is not quantized from the dtypes on disk")
    texts = [structure.rename(text) for text in originals or sorted(request.plain or ())]
    entries = EntryList(texts, parse_exact, originals=originals or texts, keys=make_substring_keys(texts))

    def decide(module: Module) -> Decision:
        if module.role == EXPERTS:
            hit = entries.first_match(module.name)
        elif module.role == LINEAR or (module.role == HEAD and config.get("lm_head")):
            hit = find_skipped_by_vllm(entries, module.name, structure.fused_modules, exact=False)
        else:
            return UNQUANTIZED
        return Decision(quantized=hit is None, entry=entries.original(hit))

    return QuantizationPolicy(decide, {"modules_to_not_convert": entries} if originals else {})


def _read_quark(request: ConsumerInput) -> QuantizationPolicy:
    config, structure = request.config, request.structure
    if not isinstance(config.get("export"), dict):
        raise ConsumerError("export is missing")
    originals = read_ignore_list(config, "exclude")
    if not all(isinstance(text, str) for text in originals):
        raise UnknownBehavior("exclude holds more than strings")
    texts = [structure.rename(str(text)) for text in originals]
    entries = EntryList(texts, parse_exact_or_regex, originals=originals, like_regex=True)

    def decide(module: Module) -> Decision:
        hit = None
        if module.role == EXPERTS:
            children = (i for i, t in enumerate(texts) if t == module.name or t.startswith(module.name + "."))
            hit = next(children, None)
        if hit is None:
            hit = _find_ignoring_entry(entries, module.name, structure.fused_modules)
        if module.role not in (LINEAR, EXPERTS):
            return UNQUANTIZED
        return Decision(quantized=hit is None, entry=entries.original(hit))

    return QuantizationPolicy(decide, {"exclude": entries})


def _read_mxfp4(request: ConsumerInput) -> QuantizationPolicy:
    def decide(module: Module) -> Decision:
        return Decision(quantized=module.role == EXPERTS)

    return QuantizationPolicy(decide, {})


VLLM = Consumer(
    name="vllm",
    title="vLLM",
    version=VERSION,
    read_config=read_config,
    structures=StructureTable(Path(__file__).with_name("vllm.json"), experts_class="RoutedExperts", fuses_unknown=True),
    missing_parameter_effect="stops at {tensor}",
    is_default=True,
    # `AutoWeightsLoader` and the models' `load_weights` raise on a tensor without a parameter
    stops_at_unknown_tensors=True,
    weight_files=lambda ckpt: ckpt.globbed_files,
    sync_effect="refuses these tensors",
)
