"""The results of probes, as evidence for their rules."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from ckptcheck.errors import EvidenceError
from ckptcheck.linter.evidence import EvidenceDefaults
from ckptcheck.linter.report import Section
from ckptcheck.linter.rule import Skip
from ckptcheck.live.runtime.engines.base import EngineInfo
from ckptcheck.live.runtime.trainers.base import TrainerInfo
from ckptcheck.rollouts.metrics.noise_floor import NoiseFloor

Result = TypeVar("Result")


@dataclass(frozen=True)
class ProbeTrace(EvidenceDefaults):
    """The results of a run of probes."""

    target: str
    engine: EngineInfo | None = None
    trainer: TrainerInfo | None = None
    requested: tuple[str, ...] = ()
    """All probes of the run."""
    results: Mapping[str, object] = field(default_factory=dict)
    """Probe → its result, a dataclass of its module."""
    unavailable: Mapping[str, str] = field(default_factory=dict)
    """Probe → why it could not run."""
    failures: Mapping[str, str] = field(default_factory=dict)
    """Probe → what killed an engine or a trainer in it."""
    ignored_switches: Mapping[str, str] = field(default_factory=dict)
    """Switch of the user → why the engine did not take it."""
    floor: NoiseFloor | None = None
    """The gap of this model with equal weights, where the user gave it."""
    kind: str = "probe"

    def result_of(self, name: str, kind: type[Result]) -> Result:
        """Return the result of a probe. Raises Skip where it could not run, EvidenceError where a process died in it."""
        if name in self.failures:
            raise EvidenceError(self.failures[name])
        if name in self.unavailable:
            raise Skip(self.unavailable[name])
        result = self.results.get(name)
        if not isinstance(result, kind):
            raise Skip("the run ended before it")
        return result

    def list_results(self, *names: str) -> Iterator[tuple[str, object]]:
        """Yield each of these probes that ran, and its result.

        Then raises EvidenceError where a process died in one of them, and Skip where one could not run: a rule on several probes
        judges what there is, and has not passed what is missing.
        """
        requested = [name for name in names if name in self.requested]
        for name in requested:
            if name in self.results:
                yield name, self.results[name]
        if failures := [self.failures[name] for name in requested if name in self.failures]:
            raise EvidenceError("; ".join(failures))
        missing = [name for name in requested if name not in self.results]
        if missing:
            reasons = (f"{name}: {self.unavailable.get(name, 'the run ended before it')}" for name in missing)
            raise Skip("; ".join(reasons))

    @property
    def subject(self) -> str:
        """The engine and the trainer that were probed."""
        sides = [f"{side.name} {side.version} {side.dtype}" for side in (self.engine, self.trainer) if side is not None]
        return " beside ".join(sides)

    @property
    def unread(self) -> Mapping[str, str]:
        """Nothing: a probe that could not run concerns only its own rules, which are skipped."""
        return {}

    @property
    def counts(self) -> Mapping[str, int]:
        """Probes that ran, as files."""
        return {"files": len(self.results), "tensors": 0, "bytes": 0}

    @property
    def sections(self) -> tuple[Section, ...]:
        """The tables of the probes that have one, ignored switches, and probes that could not run."""
        tables = [section for result in self.results.values() for section in list_tables(result)]
        notes = {
            "Switches that the engine did not take": self.ignored_switches,
            "Probes that could not run": self.unavailable,
        }
        lists = (
            Section(title, lines=tuple(f"{name}: {reason}" for name, reason in reasons.items()))
            for title, reasons in notes.items()
            if reasons
        )
        return (*tables, *lists)


def list_tables(result: object) -> tuple[Section, ...]:
    """Return the tables of a probe's result: its ``sections``, or its ``section``, or none."""
    if (sections := getattr(result, "sections", None)) is not None:
        return tuple(sections)
    section = getattr(result, "section", None)
    return () if section is None else (section,)


def requires_probe(*names: str) -> Callable[[ProbeTrace], bool]:
    """Return a condition for a rule: at least one of its probes is part of the run."""
    return lambda trace: any(name in trace.requested for name in names)
