"""Decides which modules compressed-tensors 0.20.0 quantizes; transformers calls it.

Source: compressed_tensors/utils/match.py and quantization/lifecycle/apply.py. The library sees the module names of transformers.
A target also matches the name of a parent class, so ``Linear`` matches every ``nn.Linear``, but not a router of another class.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ckptcheck.consumers.base import (
    EMBEDDING,
    LINEAR,
    UNQUANTIZED,
    ConsumerError,
    ConsumerInput,
    Decision,
    Module,
    UnknownBehavior,
)
from ckptcheck.consumers.config_lists import reject_removed_actorder
from ckptcheck.consumers.consumer import Consumer, QuantizationPolicy
from ckptcheck.consumers.entries import EntryList, parse_exact_or_regex
from ckptcheck.consumers.structures import StructureTable

VERSION = "0.20.0"
STRUCTURES = StructureTable(Path(__file__).with_name("transformers.json"))
"""The modules of transformers, on which the library works."""


def read_config(request: ConsumerInput) -> QuantizationPolicy:
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


COMPRESSED_TENSORS = Consumer(
    name="compressed-tensors",
    title="compressed-tensors",
    version=VERSION,
    read_config=read_config,
    structures=STRUCTURES,
    missing_parameter_effect="finds no parameter for {tensor}",
    casts_same_name=False,
)
