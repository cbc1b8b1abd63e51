"""Decides which modules transformers 5.23 replaces by quantized ones.

Source: transformers/quantizers/ and integrations/. It matches the names of its own modules; its skip lists are regexes without
a prefix, see `parse_regex_or_suffix`. Without a list it skips the head and the tensors tied to it. If an architecture has other
names on disk, transformers renames fp8's list too; that is not modelled.
"""

from __future__ import annotations

from collections.abc import Callable

from ckptcheck.consumers import compressed_tensors
from ckptcheck.consumers.base import (
    EXPERTS,
    LINEAR,
    UNQUANTIZED,
    ConsumerError,
    ConsumerInput,
    Decision,
    Module,
    UnknownBehavior,
)
from ckptcheck.consumers.config_lists import read_text_list
from ckptcheck.consumers.consumer import Consumer, QuantizationPolicy
from ckptcheck.consumers.entries import EntryList, make_suffix_keys, parse_exact, parse_regex_or_suffix

VERSION = "5.24.0"
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
        return compressed_tensors.read_config(request)
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
    structures=compressed_tensors.STRUCTURES,
    missing_parameter_effect="initialises the weight at random and mentions it only in its loading report",
    # transformers loads the files that the index names
    weight_files=lambda ckpt: ckpt.model_files,
)
