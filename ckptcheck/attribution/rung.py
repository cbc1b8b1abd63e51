"""A rung of the ladder: one question, answered by one or more experiments."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Literal

from ckptcheck.attribution.state import State
from ckptcheck.attribution.world import World

Layer = Literal["objective", "weights", "semantics", "path", "precision", "routing"]


@dataclass(frozen=True)
class Experiment:
    """One change and what it came to. words: ``at T = 0.7``, after "x % of the gap vanishes". cause: what that proves.

    hint: what to do. rest: the change only leaves tokens out, which lowers any gap; it counts only if what is left is at
    the floor. fitted: it has a number of its own that was chosen for the best fit, so it has to explain most.
    """

    words: str
    cause: str
    hint: str
    after: State = field(repr=False)
    rest: bool = False
    fitted: bool = False


@dataclass(frozen=True)
class Rung:
    """name: as the table shows it. layer: what a verdict from here is about.

    tried: gives the experiments; raises Unable where none can be made.
    """

    name: str
    layer: Layer
    tried: Callable[[World, State], Iterator[Experiment]] = field(repr=False)
