"""Decides which modules transformers 5.23 replaces by quantized ones, and compressed-tensors 0.20.0, which it calls.

Source: transformers/quantizers/ and integrations/. It matches the names of its own modules; its skip lists are regexes without
a prefix, see `parse_regex_or_suffix`. Without a list it skips the head and the tensors tied to it. If an architecture has other
names on disk, transformers renames fp8's list too; that is not modelled.

compressed-tensors (utils/match.py, quantization/lifecycle/apply.py) sees the same names. A target also matches the name of a parent
class, so ``Linear`` matches every ``nn.Linear``, but not a router of another class.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from ckptcheck.consumers.base import (
    EMBEDDING,
    EXPERTS,
    LINEAR,
    UNQUANTIZED,
    ConsumerError,
    ConsumerInput,
    Decision,
    Module,
    UnknownBehavior,
)
from ckptcheck.consumers.config_lists import read_text_list, reject_removed_actorder
from ckptcheck.consumers.consumer import Consumer, QuantizationPolicy
from ckptcheck.consumers.entries import (
    EntryList,
    make_suffix_keys,
    parse_exact,
    parse_exact_or_regex,
    parse_regex_or_suffix,
)
from ckptcheck.consumers.structures import StructureTable

VERSION = "5.24.0"
STRUCTURES = StructureTable(Path(__file__).with_name("transformers.json"))
"""The modules of transformers, on which compressed-tensors works too."""
UNSUPPORTED = ("modelopt", "modelopt_fp4", "modelopt_mixed", "modelopt_mxfp8", "nvfp4_online", "w4afp8")
"""Methods for which transformers warns, and then loads the tensors as if they were not quantized."""
GPTQ_BLOCKS = (
    "transformer.h",
    "model.decoder.layers",
    "gpt_neox.layers",
    "model.layers",
    "model.language_model.layers",
    "h",
    "decoder.layers",
    "layers",
)
"""Prefixes by which optimum finds the layers of a model: the first that a module's name begins with (gptq/constants.py)."""
GPTQ_CLASSES = ("Linear", "Conv1D", "Conv2d")
"""Classes that optimum replaces; experts and routers have classes of their own, which it leaves alone."""


def read_config(request: ConsumerInput) -> QuantizationPolicy:
    """Read a config. Raises ConsumerError if the library raises, UnknownBehavior for a method that is not modelled."""
    method = request.method
    if method == "compressed-tensors":
        return read_compressed_tensors(request)
    if method in UNSUPPORTED:
        return QuantizationPolicy(lambda module: UNQUANTIZED)
    if method in ("fp8", "mxfp8"):
        return _read_skip_list(request, "modules_to_not_convert", _is_fp8_module)
    if method == "awq":
        return _read_skip_list(request, "modules_to_not_convert", _is_linear, always=True)
    if method == "gptq":
        return _read_gptq(request)
    if method.startswith("bitsandbytes"):
        return _read_skip_list(request, "llm_int8_skip_modules", _is_exactly_linear)
    if method == "mxfp4":
        return _read_skip_list(request, "modules_to_not_convert", lambda module: module.role == EXPERTS)
    raise UnknownBehavior(f"what transformers makes of {method} is not known to ckptcheck")


def read_compressed_tensors(request: ConsumerInput) -> QuantizationPolicy:
    """Read a config. Raises ConsumerError if the library raises on it, UnknownBehavior for another method."""
    if request.method != "compressed-tensors":
        raise UnknownBehavior(f"compressed-tensors does not know the method {request.method}")
    targets = _list_targets(request.config)
    ignored = [] if request.config.get("ignore") is None else request.config["ignore"]
    if not isinstance(ignored, list) or not all(isinstance(text, str) for text in ignored):
        raise ConsumerError("ignore is not a list of strings")
    ignore = EntryList(ignored, parse_exact_or_regex)
    target = EntryList(targets, parse_exact_or_regex)
    order = sorted(range(len(targets)), key=lambda number: ("re:" in targets[number], targets[number]))

    def decide(module: Module) -> Decision:
        classes = {module.class_name, "Module"} | {
            {LINEAR: "Linear", EMBEDDING: "Embedding"}.get(module.role, "Module")
        }
        by_name = target.match_all(module.name)
        matching = sorted({*by_name, *(n for n, text in enumerate(targets) if text in classes)})
        # the library tries targets in order, up to the first that matches by name or class
        target.check_entries_before(matching[0] if matching else None)
        if not matching:
            return UNQUANTIZED
        ignoring = ignore.match_all(module.name)
        ignoring = sorted({*ignoring, *(n for n, text in enumerate(ignore.texts) if text in classes)})
        ignore.check_entries_before(ignoring[0] if ignoring else None)
        if ignoring:
            return Decision(quantized=False, entry=ignore.originals[ignoring[0]])
        target.check_entries_before(None)  # the library evaluates all targets before it chooses the scheme
        if module.role not in (LINEAR, EMBEDDING):
            return UNQUANTIZED
        number = next(n for n in [*(n for n in order if n in by_name), *(n for n in order if n in matching)])
        return Decision(quantized=True, scheme=targets[number], entry=targets[number])

    return QuantizationPolicy(decide, {"ignore": ignore, "targets": target})


def _list_targets(config: Any) -> list[str]:
    groups = config.get("config_groups")
    if not isinstance(groups, dict):
        raise ConsumerError("config_groups is not an object")
    targets: list[str] = []
    for name, group in groups.items():
        listed = group.get("targets") if isinstance(group, dict) else group
        if not isinstance(listed, list) or not all(isinstance(text, str) for text in listed):
            raise ConsumerError(f"config_groups.{name} has no list of targets")
        if isinstance(group, dict):
            reject_removed_actorder(name, group)
        targets += [text for text in listed if text not in targets]
    return targets


def _read_skip_list(
    request: ConsumerInput, key: str, is_quantizable: Callable[[Module], bool], *, always: bool = False
) -> QuantizationPolicy:
    """Decide by a skip list. always: the default skips also apply beside a list."""
    value = request.config.get(key)
    listed = read_text_list(request.config, key)
    defaults = list(request.structure.default_skips) if value is None or always else []
    texts = [*listed, *defaults]
    entries = EntryList(texts, parse_regex_or_suffix, keys=make_suffix_keys(texts))

    def decide(module: Module) -> Decision:
        hit = entries.first_match(module.name)
        if hit is not None or not is_quantizable(module):
            return Decision(quantized=False, entry=entries.original(hit))
        return Decision(quantized=True)

    return QuantizationPolicy(decide, {key: entries})


def _read_gptq(request: ConsumerInput) -> QuantizationPolicy:
    """Decide as optimum 2.3 does (`GPTQQuantizer.convert_model`), which ignores GPTQModel's ``dynamic``.

    It replaces every linear module of the layers, or the ones whose names end with an entry of ``modules_in_block_to_quantize``.
    """
    groups = request.config.get("modules_in_block_to_quantize")
    if groups is not None and not (isinstance(groups, list) and all(isinstance(group, list) for group in groups)):
        raise ConsumerError("modules_in_block_to_quantize is not a list of lists")
    texts = None if groups is None else [text for group in groups for text in group]
    kept = EntryList([] if texts is None else texts, parse_exact, keys=make_suffix_keys(texts or ()))
    block = request.config.get("block_name_to_quantize")
    if block is not None and not isinstance(block, str):
        raise ConsumerError("block_name_to_quantize is not a string")
    if block is None:
        stored = map(request.structure.rename, (request.packed or frozenset()) | (request.plain or frozenset()))
        names = tuple(stored) or GPTQ_BLOCKS[3:4]
        block = next((each for each in GPTQ_BLOCKS if any(name.startswith(each) for name in names)), None)
        if block is None:
            raise ConsumerError(
                "no module has the name of a layer that optimum knows, and block_name_to_quantize is missing"
            )
    prefix = block

    def decide(module: Module) -> Decision:
        if module.class_name not in GPTQ_CLASSES or not module.name.startswith(prefix):
            return UNQUANTIZED
        if texts is None:
            return Decision(quantized=True)
        hit = kept.first_match(module.name)
        return Decision(quantized=hit is not None, entry=kept.original(hit))

    return QuantizationPolicy(decide, {} if texts is None else {"modules_in_block_to_quantize": kept})


def _is_fp8_module(module: Module) -> bool:
    return module.name.endswith(".experts") or _is_exactly_linear(module) or "GroupedLinear" in module.class_name


def _is_exactly_linear(module: Module) -> bool:
    return module.class_name in ("Linear", "Conv1D")


def _is_linear(module: Module) -> bool:
    return module.role == LINEAR


TRANSFORMERS = Consumer(
    name="transformers",
    title="transformers",
    version=VERSION,
    read_config=read_config,
    structures=STRUCTURES,
    missing_parameter_effect="initialises the weight at random and mentions it only in its loading report",
    # transformers loads the files that the index names
    weight_files=lambda ckpt: ckpt.model_files,
)
COMPRESSED_TENSORS = Consumer(
    name="compressed-tensors",
    title="compressed-tensors",
    version="0.20.0",
    read_config=read_compressed_tensors,
    structures=STRUCTURES,
    missing_parameter_effect="finds no parameter for {tensor}",
    casts_same_name=False,
)
