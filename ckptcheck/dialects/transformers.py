"""transformers 5.23: which modules it replaces by quantized ones.

Source: transformers/quantizers/ and integrations/. Names are those of its own modules; its skip lists are regexes without
a mark, see `module_or_suffix`. Without a list it skips the head and what is tied to it. Where an architecture's names on
disk are not its own, transformers renames the list of fp8 too; that is not modelled.
"""

from __future__ import annotations

from collections.abc import Callable

from ckptcheck.dialects import compressed_tensors
from ckptcheck.dialects.base import EXPERTS, LINEAR, Module, Question, Unknown, Verdict
from ckptcheck.dialects.entries import Entries, endings, module_or_suffix
from ckptcheck.dialects.reading import Reader, text_list

NAME, VERSION = "transformers", "5.23.0"
PLAIN = Verdict(quantized=False)
UNSUPPORTED = ("modelopt", "modelopt_fp4", "modelopt_mixed", "modelopt_mxfp8", "nvfp4_online", "w4afp8")
"""Methods that transformers warns about and then loads as if the tensors were not quantized."""


def read(question: Question) -> Reader:
    """Read a config. Raises Refused where the library raises on it, Unknown for a method that is not modelled."""
    method = question.method
    if method == "compressed-tensors":
        return compressed_tensors.read(question)
    if method in UNSUPPORTED:
        return Reader(lambda module: PLAIN)
    if method in ("fp8", "mxfp8"):
        return _by_list(question, "modules_to_not_convert", _fp8)
    if method == "awq":
        return _by_list(question, "modules_to_not_convert", _any_linear, always=True)
    if method.startswith("bitsandbytes"):
        return _by_list(question, "llm_int8_skip_modules", _exactly_linear)
    if method == "mxfp4":
        return _by_list(question, "modules_to_not_convert", lambda module: module.role == EXPERTS)
    raise Unknown(f"what transformers makes of {method} is not known to ckptcheck")


def _by_list(question: Question, key: str, fits: Callable[[Module], bool], *, always: bool = False) -> Reader:
    """Judge by a skip list. always: what is skipped without a list is skipped beside one too."""
    given = question.config.get(key)
    listed = text_list(question.config, key)
    defaults = list(question.structure.skipped) if given is None or always else []
    texts = [*listed, *defaults]
    entries = Entries(texts, module_or_suffix, keys=endings(texts))

    def judge(module: Module) -> Verdict:
        hit = entries.first(module.name)
        if hit is not None or not fits(module):
            return Verdict(quantized=False, entry=None if hit is None else entries.written[hit])
        return Verdict(quantized=True)

    return Reader(judge, {key: entries})


def _fp8(module: Module) -> bool:
    return module.name.endswith(".experts") or _exactly_linear(module) or "GroupedLinear" in module.kind


def _exactly_linear(module: Module) -> bool:
    return module.kind in ("Linear", "Conv1D")


def _any_linear(module: Module) -> bool:
    return module.role == LINEAR
