"""Reads lists out of a quantization config, and the targets of ``config_groups`` with their schemes, as consumers do."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ckptcheck.consumers.base import ConsumerError, Decision, Module, UnknownBehavior
from ckptcheck.consumers.entries import (
    EntryList,
    FusedModules,
    expand_by_suffix,
    parse_exact_or_regex,
    parse_regex_only,
)

_DEFAULT_ARGS: dict[str, Any] = {
    "num_bits": 8, "type": "int", "symmetric": True, "group_size": None, "strategy": None, "block_structure": None,
    "dynamic": False, "actorder": None, "scale_dtype": None, "zp_dtype": None,
}  # fmt: skip
"""Defaults of `QuantizationArgs` in compressed-tensors 0.20.0, so that two groups that mean the same compare equal."""

Scheme = tuple[Any, ...]


def read_text_list(config: Mapping[str, Any], *keys: str) -> list[str]:
    """Return the first of these lists that the config has, or []. Every consumer reads a string as the list of its letters.

    Raises:
        ConsumerError: if the value is no list.
        UnknownBehavior: if entries are no strings, which some consumers never notice.

    """
    for key in keys:
        if config.get(key) is None:
            continue
        listed = config[key]
        if isinstance(listed, str):
            return list(listed)
        if not isinstance(listed, list):
            raise ConsumerError(f"{key} is not a list")
        if not all(isinstance(each, str) for each in listed):
            raise UnknownBehavior(f"{key} holds more than strings")
        return list(listed)
    return []


def read_ignore_list(config: Mapping[str, Any], key: str = "ignore") -> list[object]:
    """Return the ignore list with entries of any type. The engines iterate over it, so a string is the list of its letters.

    Raises:
        ConsumerError: if the engines cannot iterate over the value.
        UnknownBehavior: for an object.

    """
    listed = config.get(key, [])
    if isinstance(listed, str | list):
        return list(listed)
    if isinstance(listed, dict):
        raise UnknownBehavior(f"{key} is an object")
    raise ConsumerError(f"{key} is not a list")


def read_targets(config: Mapping[str, Any], *, vllm: bool = False) -> dict[str, Scheme]:
    """Return target → scheme, in the order of the config; a later group replaces the scheme of an earlier one.

    Args:
        config: the quantization config.
        vllm: whether to leave out groups whose only target ends in ``Attention``, and to refuse an actorder by group, as
            vLLM 0.32.0 does.

    Raises:
        ConsumerError: if the engines raise on the config.
    """
    groups = config.get("config_groups", {})
    if not isinstance(groups, dict):
        raise ConsumerError("config_groups is not an object")
    targets: dict[str, Scheme] = {}
    for name, group in groups.items():
        if not isinstance(group, dict):
            raise ConsumerError(f"config_groups.{name} is not an object")
        names = group.get("targets")
        if not isinstance(names, list) or not all(isinstance(target, str) for target in names):
            raise ConsumerError(f"config_groups.{name}.targets is not a list of strings")
        if vllm and len(names) == 1 and names[0].endswith("Attention"):
            continue
        if names and not isinstance(group.get("weights"), dict):
            raise ConsumerError(f"config_groups.{name} says nothing of weights")
        if names and vllm:
            reject_removed_actorder(name, group)
        for target in names:
            targets[target] = (
                _normalize_args(group["weights"]),
                _normalize_args(group.get("input_activations")),
                group.get("format"),
            )
    return targets


class Targets:
    """The targets of compressed-tensors with their schemes, as both engines look modules up in them."""

    def __init__(
        self, schemes: Mapping[str, Scheme], rename: Callable[[str], str], *, like_regex: bool = False
    ) -> None:
        """Read the targets. rename: the engine's; like_regex: see `EntryList`."""
        named = {rename(name): (name, scheme) for name, scheme in schemes.items()}
        self.names = list(named)
        self.originals = [original for original, _ in named.values()]
        """Each target as the config has it."""
        self.schemes = [scheme for _, scheme in named.values()]
        self.entries = EntryList(self.names, parse_exact_or_regex, originals=self.originals, like_regex=like_regex)
        self._patterns = EntryList(self.names, parse_regex_only, originals=self.originals, like_regex=like_regex)
        self._patterns.usages = self.entries.usages

    def find_by_shards(self, name: str, fused: FusedModules) -> int | None:
        """Return the target of a fused module's first shard if each shard has one."""
        numbers = [self.entries.first_match(shard) for shard in expand_by_suffix(name, fused) or ()]
        return numbers[0] if numbers and None not in numbers else None

    def find_by_class(self, class_name: str) -> int | None:
        """Return the first target that the class contains, in any case, or that is a regex matching it."""
        by_regex = self._patterns.first_match(class_name)
        for number, text in enumerate(self.names):
            if number == by_regex or (not text.startswith("re:") and text.lower() in class_name.lower()):
                self.entries.record_match(self.originals[number])
                return number
        return None

    def copy_linear(self, *kinds: str) -> None:
        """Give classes of experts the scheme of ``Linear``."""
        linear = self.names.index("Linear")
        for kind in kinds:
            if kind not in self.names:
                self.names.append(kind)
                self.originals.append(self.originals[linear])
                self.schemes.append(self.schemes[linear])
            self.schemes[self.names.index(kind)] = self.schemes[linear]

    def require_one_scheme(self, module: Module, numbers: Sequence[int | None]) -> None:
        """Raise ConsumerError if the projections of experts get different schemes."""
        chosen = [None if number is None else self.schemes[number] for number in numbers]
        if any(each != chosen[0] for each in chosen):
            raise ConsumerError(f"the projections of {module.name} get different schemes")

    def decide(self, number: int) -> Decision:
        """Return the decision for a module that gets a target's scheme."""
        return Decision(quantized=True, scheme=self.originals[number], entry=self.originals[number])


def reject_removed_actorder(name: str, group: Mapping[str, Any]) -> None:
    """Raise ConsumerError for an ``actorder`` that compressed-tensors 0.20 and vLLM 0.32 have removed."""
    weights = group.get("weights")
    order = weights.get("actorder") if isinstance(weights, dict) else None
    if order is True or (isinstance(order, str) and order.lower() in ("group", "dynamic")):
        raise ConsumerError(f"config_groups.{name} has an actorder that is no longer supported")


def _normalize_args(value: object) -> object:
    if not isinstance(value, dict):
        return None
    full = {
        **_DEFAULT_ARGS,
        **{name: each for name, each in value.items() if name not in ("observer", "observer_kwargs")},
    }
    if full["strategy"] is None:
        size = full["group_size"]
        full["strategy"] = "tensor" if size is None else "channel" if size == -1 else "group"
    return tuple(sorted((name, repr(each)) for name, each in full.items()))
