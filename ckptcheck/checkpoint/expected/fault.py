"""One difference between the stored tensors and those that the model has, and what the causes found so far explain."""

from __future__ import annotations

from re import Pattern
from typing import Literal

import msgspec

from ckptcheck.linter.rule import Problem

Fact = Literal["missing", "surplus", "shape", "layout"]
"""What a user sees: a parameter that no tensor fills, a tensor that no parameter reads, a tensor of another shape, names of
another layout."""


class Fault(msgspec.Struct, frozen=True):
    """A difference with one cause."""

    fact: Fact
    problem: Problem
    parameters: frozenset[str] = frozenset()
    """The parameters concerned, with {} for each number, if a stored tensor under another name may be one of them."""
    is_of_engines: bool = False
    """Whether only engines build the parameters, so that a load by transformers cannot confirm or deny the fault."""


class Explained(msgspec.Struct):
    """What earlier steps have decided, fault or no fault: later steps report nothing about it."""

    names: set[str] = msgspec.field(default_factory=set)
    """Names of decided parameters, within a layer or outside the layers."""
    patterns: list[Pattern[str]] = msgspec.field(default_factory=list)
    """Patterns of the names of decided parameters."""
    except_for: list[Pattern[str]] = msgspec.field(default_factory=list)
    """Patterns of names that `patterns` does not cover after all."""
    torn: dict[str, set[int]] = msgspec.field(default_factory=dict)
    """Prefix of a stack → its layers whose missing tensors are reported."""
    parts: tuple[str, ...] = ()
    """Modules, each with a dot behind it, of which nothing is stored, or all under another name."""
    moved: frozenset[str] = frozenset()
    """Stored tensors of parts that lie under another prefix than the model's."""
    tensors: set[str] = msgspec.field(default_factory=set)
    """Stored tensors whose wrong shape is reported."""
    sizes: dict[str, int] = msgspec.field(default_factory=dict)
    """Settings that are reported as wrong, without the path of their sub-config → the size that the tensors have."""

    def has(self, parameter: str) -> bool:
        """Whether an earlier step has decided about a parameter, given with {} for each number."""
        if parameter.startswith(self.parts):
            return True
        _, is_inside, rest = parameter.partition(".{}.")
        if is_inside:
            return rest in self.names
        return parameter in self.names or (
            any(pattern.search(parameter) for pattern in self.patterns)
            and not any(pattern.search(parameter) for pattern in self.except_for)
        )

    def has_torn(self, layers: set[int]) -> bool:
        """Whether earlier steps have reported all these layers, in one stack, as lacking something."""
        return any(layers <= torn for torn in self.torn.values() if torn)


def place_of(name: str) -> tuple[str, str]:
    """Return the parts of a name that survive a misspelt module: the module around it, and the last part."""
    module, _, last = name.rpartition(".")
    return module.rpartition(".")[0], last
