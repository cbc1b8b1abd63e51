"""Experiments and their trials: an experiment tests one possible cause in one or more trials."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Literal

from ckptcheck.live.experiments.attribution.backend import Backend
from ckptcheck.live.experiments.attribution.state import SearchState

Layer = Literal["objective", "weights", "semantics", "path", "precision", "routing"]


@dataclass(frozen=True)
class Trial:
    """One change that an experiment tries, and the state of the search after it."""

    description: str
    """``at T = 0.7``: follows "x % of the gap vanishes" in the message."""
    cause: str
    """Names the fault, for the case that the gap vanishes."""
    hint: str
    """What the user should do then."""
    state: SearchState = field(repr=False)
    """The state with the change applied."""
    only_drops_tokens: bool = False
    """The change only leaves tokens out, which lowers any gap; it counts only if the remaining gap is at the floor."""
    is_fitted: bool = False
    """The change has a number that was chosen for the best fit, so it has to explain more to count."""


@dataclass(frozen=True)
class Experiment:
    """A test of one possible cause."""

    name: str
    """The name in the table of experiments."""
    layer: Layer
    """The layer that a cause found by this experiment belongs to."""
    run: Callable[[Backend, SearchState], Iterator[Trial]] = field(repr=False)
    """Yields trials; raises NotAvailable where none can run."""
    needs: str = ""
    """The column of rollouts without which the experiment is left out, because few models have what it is about; "": none."""
