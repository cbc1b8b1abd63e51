"""Decides which modules transformers 5.23 replaces by quantized ones.

Source: transformers/quantizers/ and integrations/. Names are those of its own modules; its skip lists are regexes without
a prefix, see `parse_regex_or_suffix`. Without a list it skips the head and what is tied to it. Where an architecture's names on
disk are not its own, transformers renames the list of fp8 too; that is not modelled.
"""

from __future__ import annotations

from collections.abc import Callable

from ckptcheck.consumers import compressed_tensors
from ckptcheck.consumers.base import EXPERTS, LINEAR, UNQUANTIZED, ConsumerInput, Decision, Module, UnknownBehavior
from ckptcheck.consumers.config_lists import read_text_list
from ckptcheck.consumers.consumer import Consumer, QuantizationPolicy
from ckptcheck.consumers.entries import EntryList, make_suffix_keys, parse_regex_or_suffix
from ckptcheck.consumers.undeclared_method import read_by_transformers

VERSION = "5.24.0"
UNSUPPORTED = ("modelopt", "modelopt_fp4", "modelopt_mixed", "modelopt_mxfp8", "nvfp4_online", "w4afp8")
"""Methods that transformers warns about and then loads as if the tensors were not quantized."""


def read_config(request: ConsumerInput) -> QuantizationPolicy:
    """Read a config. Raises ConsumerError where the library raises, UnknownBehavior for a method that is not modelled."""
    method = request.method
    if method == "compressed-tensors":
        return compressed_tensors.read_config(request)
    if method in UNSUPPORTED:
        return QuantizationPolicy(lambda module: UNQUANTIZED)
    if method in ("fp8", "mxfp8"):
        return _read_skip_list(request, "modules_to_not_convert", _is_fp8_module)
    if method == "awq":
        return _read_skip_list(request, "modules_to_not_convert", _is_linear, always=True)
    if method.startswith("bitsandbytes"):
        return _read_skip_list(request, "llm_int8_skip_modules", _is_exactly_linear)
    if method == "mxfp4":
        return _read_skip_list(request, "modules_to_not_convert", lambda module: module.role == EXPERTS)
    raise UnknownBehavior(f"what transformers makes of {method} is not known to ckptcheck")


def _read_skip_list(
    request: ConsumerInput, key: str, is_quantizable: Callable[[Module], bool], *, always: bool = False
) -> QuantizationPolicy:
    """Decide by a skip list. always: the modules that are skipped without a list are also skipped beside one."""
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
    # it follows the index
    weight_files=lambda ckpt: ckpt.model_files,
    read_undeclared=read_by_transformers,
)
