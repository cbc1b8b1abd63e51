"""Which config fields decide the shape of each tensor of an architecture, and which switches add tensors to it.

A table that fixtures/learn_weights.py generates from transformers; it has one line for each architecture.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from ckptcheck.checkpoint.config import Config
from ckptcheck.checkpoint.layout import INDEX

_NAME = re.compile(r"[A-Za-z_]\w*(?:\.\w+)*")


@dataclass(frozen=True)
class Switch:
    """A true-or-false setting that adds tensors."""

    name: str
    on: frozenset[str]
    """The patterns of tensors that the model has only with it."""
    off: frozenset[str]
    """The patterns of tensors that the model has only without it."""


@dataclass(frozen=True)
class WeightsTable:
    """What decides the tensors of one architecture; names of tensors have {} for each number."""

    architecture: str
    facts: Mapping[str, Any]
    """Its line of the table."""

    @staticmethod
    def of(config: Config | None) -> WeightsTable | None:
        """Return the table of a config's architecture; None if it was not learned, or if its own code decides."""
        if config is None or config.architecture is None or config.resolved is None or "auto_map" in config.value:
            return None
        # transformers builds what the model_type says, whatever the architectures say.
        if config.architecture not in config.resolved.top.config_class.models:
            return None
        return _find(config.architecture)

    @property
    def shapes(self) -> Mapping[str, str]:
        """Pattern → its dimensions as formulas of config fields, ``?`` for one that is not known."""
        shapes: Mapping[str, str] = self.facts.get("shapes", {})
        return shapes

    @cached_property
    def required(self) -> frozenset[str]:
        """The patterns of tensors that the tiny model has with every switch as it is by default."""
        return frozenset(self.facts.get("required", ()))

    @cached_property
    def switches(self) -> tuple[Switch, ...]:
        """The switches that add tensors."""
        return tuple(
            Switch(name, frozenset(found["on"]), frozenset(found["off"]))
            for name, found in self.facts.get("switches", {}).items()
        )

    @property
    def divisors(self) -> tuple[tuple[str, str], ...]:
        """Pairs of sizes; the model refuses to be built where the second does not divide the first."""
        return tuple((whole, part) for whole, part in self.facts.get("divisors", ()))

    @property
    def refuses_rope_types(self) -> bool:
        """Whether the model refuses a type of rotary embeddings that transformers does not have."""
        return bool(self.facts.get("refuses_rope_types"))

    @property
    def checked_activations(self) -> tuple[str, ...]:
        """The fields with the name of an activation that the model looks up; it reads no other."""
        return tuple(self.facts.get("refused", {}).get("x", ()))

    @property
    def refuses_negative(self) -> tuple[str, ...]:
        """The rates of dropout that must not be negative."""
        return tuple(self.facts.get("refused", {}).get("negative", ()))

    def expect_shape(self, name: str, size_of: Callable[[str], int | None]) -> tuple[int | None, ...] | None:
        """Return the shape that the model has for a tensor; None for a dimension, or a tensor, that is not known.

        size_of: the value of a config field, None where it is not known.
        """
        formulas = self.shapes.get(INDEX.sub("{}", name))
        return None if formulas is None else tuple(_evaluate(formula, size_of) for formula in formulas.split(","))

    def fields_of(self, name: str, axis: int) -> list[str]:
        """Return the config fields that decide a dimension of a tensor."""
        return list(dict.fromkeys(_NAME.findall(self.shapes[INDEX.sub("{}", name)].split(",")[axis])))


def _evaluate(formula: str, size_of: Callable[[str], int | None]) -> int | None:
    """Return the value of ``a*b``, ``a*(2*b+c)`` or ``2*b+c``; None where a field has no value."""
    if formula == "?":
        return None
    outer, _, inner = formula.rstrip(")").partition("(")
    factors = [part for part in outer.split("*") if part] if inner else []
    values = [_value(part, size_of) for part in factors]
    total: int | None = 0
    for term in (inner or outer).split("+"):
        product: int | None = 1
        for part in term.split("*"):
            value = _value(part, size_of)
            product = None if product is None or value is None else product * value
        total = None if total is None or product is None else total + product
    for value in values:
        total = None if total is None or value is None else total * value
    return total


def _value(part: str, size_of: Callable[[str], int | None]) -> int | None:
    return int(part) if part.isdigit() else size_of(part)


@cache
def _find(architecture: str) -> WeightsTable | None:
    table = (Path(__file__).parent / "weights.json").read_bytes()
    opening = f"\n{json.dumps(architecture)}: ".encode()
    start = table.find(opening)
    if start < 0:
        return None
    start += len(opening)
    return WeightsTable(architecture, json.loads(table[start : table.index(b"\n", start)].removesuffix(b",")))
