"""Decides which modules vLLM 0.32.0 builds quantized.

Source: vllm/model_executor/layers/quantization/ (compressed_tensors/, fp8.py, auto_gptq.py, auto_awq.py, modelopt.py,
quark/, mxfp4.py) and the list helpers in utils/. The model's ``hf_to_vllm_mapper`` first renames a config's entries.
Not modelled: refusals because of the GPU or a shape, after the lookup by name.
"""

from __future__ import annotations

from collections.abc import Callable
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
from ckptcheck.consumers.config_lists import Scheme, Targets, read_ignore_list, read_targets, read_text_list
from ckptcheck.consumers.consumer import Consumer, QuantizationPolicy
from ckptcheck.consumers.entries import (
    EntryList,
    FusedModules,
    expand_fused,
    find_skipped_by_vllm,
    make_substring_keys,
    parse_exact,
    parse_exact_or_regex,
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

    def rename(text: str) -> str:
        return structure.rename(text) if "." in text and not text.startswith("re:") else text

    originals = read_ignore_list(config)
    renamed = [rename(text) if isinstance(text, str) else text for text in originals]
    ignore = EntryList(renamed, parse_exact_or_regex, originals=originals, like_regex=True)
    targets = Targets(read_targets(config, vllm=True), rename, like_regex=True)

    def find_scheme(name: str, class_name: str) -> tuple[int | None, int | None]:
        """Return the entry that ignores a name, else the target that it gets."""
        hit = _find_ignoring_entry(ignore, name, structure.fused_modules)
        if hit is not None:
            return hit, None
        number = targets.entries.first_match(name)
        if number is None:
            number = targets.find_by_shards(name, structure.fused_modules)
        return None, targets.find_by_class(class_name) if number is None else number

    def decide(module: Module) -> Decision:
        if module.role == EXPERTS:
            return _decide_experts(module)
        if module.role not in (LINEAR, HEAD, EMBEDDING):
            return UNQUANTIZED
        hit, number = find_scheme(module.name, module.class_name)
        if number is None:
            return Decision(quantized=False, entry=ignore.original(hit))
        if module.role == EMBEDDING and not _is_packable(targets.schemes[number]):
            raise ConsumerError("it only quantizes an embedding to integers by group or channel, without activations")
        return targets.decide(number)

    def _decide_experts(module: Module) -> Decision:
        if "Linear" in targets.names and "RoutedExperts" not in targets.names:
            targets.copy_linear("RoutedExperts")
        choices = [find_scheme(f"{module.name}.0.{shard}", "RoutedExperts") for shard in module.expert_projections]
        targets.require_one_scheme(module, [number for _, number in choices])
        hit, number = choices[-1]
        return Decision(quantized=False, entry=ignore.original(hit)) if number is None else targets.decide(number)

    return QuantizationPolicy(decide, {"ignore": ignore, "targets": targets.entries})


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
