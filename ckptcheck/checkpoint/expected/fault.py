"""One difference between the stored tensors and those that the model has, and what the causes found so far explain."""

from __future__ import annotations

from dataclasses import dataclass, field
from re import Pattern
from typing import Literal

from ckptcheck.linter.rule import Problem

Fact = Literal["missing", "surplus", "shape", "layout", "kind"]
"""What a user meets: a parameter that nothing fills, a tensor that nothing reads, a tensor of another shape, names of another
layout, a layer of another kind than the config gives it."""


@dataclass(frozen=True)
class Fault:
    """A difference with one cause."""

    fact: Fact
    problem: Problem
    parameters: frozenset[str] = frozenset()
    """The parameters that it is about, with {} for each number, where another name may stand for one of them."""
    is_of_engines: bool = False
    """Whether only engines build what it is about, so that transformers' own loader does not answer it."""


@dataclass
class Explained:
    """What earlier steps have decided: a later one says nothing about it, whether it is a fault or right as it is."""

    names: set[str] = field(default_factory=set)
    """Names of parameters, within a layer or beside the layers."""
    patterns: list[Pattern[str]] = field(default_factory=list)
    """How the names of such parameters look."""
    except_for: list[Pattern[str]] = field(default_factory=list)
    """How the names of parameters look to which these patterns do not apply."""
    torn: dict[str, set[int]] = field(default_factory=dict)
    """Prefix of a stack → its layers of which is said what they lack."""
    tensors: set[str] = field(default_factory=set)
    """Stored tensors of whose shape is said what is wrong."""
    sizes: dict[str, int] = field(default_factory=dict)
    """Settings of which is said that they are wrong, without the path of their part → the size that is stored in their place."""

    def has(self, parameter: str) -> bool:
        """Whether an earlier step has decided about a parameter, given with {} for each number."""
        _, is_inside, rest = parameter.partition(".{}.")
        if is_inside:
            return rest in self.names
        return parameter in self.names or (
            any(pattern.search(parameter) for pattern in self.patterns)
            and not any(pattern.search(parameter) for pattern in self.except_for)
        )

    def has_torn(self, layers: set[int]) -> bool:
        """Whether an earlier step has said of all these layers, in one stack, that they lack something."""
        return any(layers <= torn for torn in self.torn.values() if torn)


def place_of(name: str) -> tuple[str, str]:
    """Return what a tensor keeps where its module is misspelt: the module around it, and its own last part."""
    module, _, last = name.rpartition(".")
    return module.rpartition(".")[0], last
