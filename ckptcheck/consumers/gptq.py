"""Reads GPTQ's ``dynamic``: patterns that skip modules or override how they are quantized.

Both engines follow GPTQModel: keys are tried in order with `re.match`, ``-:`` skips, ``+:`` or no prefix overrides.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from ckptcheck.consumers.base import ConsumerError, ConsumerInput, Decision
from ckptcheck.consumers.entries import EntryList, EntryMatcher

MARLIN = {(4, True), (8, True)}
"""(bits, sym) for which vLLM 0.32.0 and SGLang 0.5.23 have a kernel on CUDA."""


class GptqOverrides(msgspec.Struct, frozen=True):
    """The patterns of one config, and the settings that they override."""

    entries: EntryList
    values: dict[str, Any]
    bits: object
    sym: object

    def decide(self, name: str) -> Decision:
        """Decide on a module that is quantized unless a pattern skips it."""
        hit = self.entries.first_match(name)
        if hit is None:
            return Decision(quantized=True)
        text = self.entries.originals[hit]
        if text.startswith("-:"):
            return Decision(quantized=False, entry=text)
        override = self.values[text]
        if not isinstance(override, dict):
            raise ConsumerError(f"dynamic {text!r} is not an object")
        bits, sym = override.get("bits", self.bits), override.get("sym", self.sym)
        bits = bits if isinstance(bits, int) else self.bits
        sym = sym if isinstance(sym, bool) else self.sym
        if (bits, sym) not in MARLIN:
            raise ConsumerError(f"dynamic {text!r} asks for bits={bits}, sym={sym}, which it has no kernel for")
        return Decision(quantized=True, scheme=text, entry=text)


def read_overrides(
    request: ConsumerInput, *, like_regex: bool = False, refuses_grouped_order: bool = False
) -> GptqOverrides:
    """Read ``dynamic`` and check the settings of the whole config.

    Args:
        request: the config.
        like_regex: whether the consumer matches with the library `regex`, not with `re`.
        refuses_grouped_order: whether the consumer refuses ``desc_act`` with groups.

    Raises:
        ConsumerError: if the consumer raises.

    """
    config = request.config
    for key in ("bits", "group_size", "desc_act", "sym"):
        if key not in config:
            raise ConsumerError(f"{key} is missing")
    bits, sym, size = config["bits"], config["sym"], config["group_size"]
    values = config.get("dynamic") or {}
    if not isinstance(values, dict):
        raise ConsumerError("dynamic is not an object")
    if not isinstance(bits, int) or not isinstance(sym, bool) or (bits, sym) not in MARLIN:
        raise ConsumerError(f"bits={bits} with sym={str(sym).lower()} is not supported")
    if refuses_grouped_order:
        _check_activation_order(config, values, size)
    return GptqOverrides(read_dynamic_patterns(list(values), like_regex=like_regex), values, bits, sym)


def read_dynamic_patterns(keys: Sequence[str], *, like_regex: bool) -> EntryList:
    """Read the keys of ``dynamic``; the first that matches a name decides. like_regex: matched with `regex`, not with `re`."""
    return EntryList(keys, _parse_dynamic_key, like_regex=like_regex)


def _check_activation_order(config: Any, values: dict[str, Any], size: object) -> None:
    """Raise where vLLM does: desc_act needs one group per channel since 0.32.0 (`normalize_and_validate_gptq_desc_act`)."""
    if config["desc_act"] and size != -1:
        raise ConsumerError("desc_act=true with groups is no longer supported")
    for text, override in values.items():
        if text.startswith("-:") or not isinstance(override, dict):
            continue
        if override.get("desc_act", config["desc_act"]) and override.get("group_size", size) != -1:
            raise ConsumerError(f"dynamic {text!r} asks for desc_act=true with groups, which is no longer supported")


def _parse_dynamic_key(text: str) -> EntryMatcher:
    return EntryMatcher(pattern=text.removeprefix("-:" if text.startswith("-:") else "+:"))
