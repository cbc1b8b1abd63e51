"""An experiment, and the table of what became of each experiment of a run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Generic, ParamSpec, TypeVar

P = ParamSpec("P")
Key = TypeVar("Key")
Run = TypeVar("Run", bound=Iterator[object], covariant=True)
Result = TypeVar("Result")


@dataclass(frozen=True)
class Experiment(Generic[P, Run]):
    """One thing that is changed before a side scores again.

    `run` gets what the experiments of a command share, and takes one step after the other: a probe yields the set-ups of the
    engine that it needs, an experiment on a gap yields changes to keep, a comparison of a calibration yields nothing. What it
    returns is its result. It raises Skip where it cannot run.
    """

    name: str
    """The name in tables and options."""
    run: Callable[P, Run] = field(repr=False)


@dataclass
class ResultTable(Generic[Key, Result]):
    """What became of each experiment of a run; one that is in none of the three is not over."""

    results: dict[Key, Result] = field(default_factory=dict)
    """Experiment → its result."""
    unavailable: dict[Key, str] = field(default_factory=dict)
    """Experiment → why it could not run."""
    failures: dict[Key, str] = field(default_factory=dict)
    """Experiment → what killed an engine or a trainer in it."""
