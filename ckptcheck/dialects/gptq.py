"""GPTQ's ``dynamic``: patterns that skip modules or override how they are quantized.

Both engines have it from GPTQModel: keys are tried in order, ``-:`` skips, ``+:`` or nothing overrides, `re.match`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ckptcheck.dialects.base import Question, Refused, Verdict
from ckptcheck.dialects.entries import Entries, Rule

MARLIN = {(4, True), (8, True)}
"""(bits, sym) for which vLLM 0.32.0 and SGLang 0.5.23 have a kernel on CUDA."""


@dataclass(frozen=True)
class Overrides:
    """The patterns of one config."""

    entries: Entries
    values: dict[str, Any]
    bits: object
    sym: object

    def judge(self, name: str) -> Verdict:
        """Judge a module that is quantized unless a pattern says otherwise."""
        hit = self.entries.first(name)
        if hit is None:
            return Verdict(quantized=True)
        text = self.entries.written[hit]
        if text.startswith("-:"):
            return Verdict(quantized=False, entry=text)
        given = self.values[text]
        if not isinstance(given, dict):
            raise Refused(f"dynamic {text!r} is not an object")
        bits, sym = given.get("bits", self.bits), given.get("sym", self.sym)
        bits = bits if isinstance(bits, int) else self.bits
        sym = sym if isinstance(sym, bool) else self.sym
        if (bits, sym) not in MARLIN:
            raise Refused(f"dynamic {text!r} asks for bits={bits}, sym={sym}, which it has no kernel for")
        return Verdict(quantized=True, scheme=text, entry=text)


def overrides(question: Question, consumer: str) -> Overrides:
    """Read ``dynamic`` and check what the whole config asks for. Raises Refused where the consumer raises."""
    config = question.config
    for key in ("bits", "group_size", "desc_act", "sym"):
        if key not in config:
            raise Refused(f"{key} is missing")
    bits, sym, size = config["bits"], config["sym"], config["group_size"]
    values = config.get("dynamic") or {}
    if not isinstance(values, dict):
        raise Refused("dynamic is not an object")
    if not isinstance(bits, int) or not isinstance(sym, bool) or (bits, sym) not in MARLIN:
        raise Refused(f"bits={bits} with sym={str(sym).lower()} is not supported")
    if consumer == "vllm":
        _activation_order(config, values, size)
    return Overrides(patterns(list(values), like_regex=consumer == "vllm"), values, bits, sym)


def patterns(keys: Sequence[str], *, like_regex: bool) -> Entries:
    """Read the keys of ``dynamic``; the first that matches a name decides. like_regex: they are not matched by `re`."""
    return Entries(keys, _pattern, like_regex=like_regex)


def _activation_order(config: Any, values: dict[str, Any], size: object) -> None:
    """Raise where vLLM would: desc_act needs one group per channel since 0.32.0 (`normalize_and_validate_gptq_desc_act`)."""
    if config["desc_act"] and size != -1:
        raise Refused("desc_act=true with groups is no longer supported")
    for text, given in values.items():
        if text.startswith("-:") or not isinstance(given, dict):
            continue
        if given.get("desc_act", config["desc_act"]) and given.get("group_size", size) != -1:
            raise Refused(f"dynamic {text!r} asks for desc_act=true with groups, which is no longer supported")


def _pattern(text: str) -> Rule:
    return Rule(pattern=text.removeprefix("-:" if text.startswith("-:") else "+:"))
