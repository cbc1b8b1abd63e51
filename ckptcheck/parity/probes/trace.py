"""What probes saw: the evidence of their rules."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from ckptcheck.engines.base import EngineInfo
from ckptcheck.errors import EvidenceError
from ckptcheck.report import Section
from ckptcheck.rule import Skip
from ckptcheck.trainers.base import TrainerInfo

Seen = TypeVar("Seen")


@dataclass(frozen=True)
class ProbeTrace:
    """seen: probe → what it saw, a dataclass of its module. left: probe → why it could not look. asked: all that were to look.

    died: probe → what an engine or a trainer died of in it. untaken: switch of the user → why the engine did not take it.
    """

    target: str
    engine: EngineInfo | None = None
    trainer: TrainerInfo | None = None
    asked: tuple[str, ...] = ()
    seen: Mapping[str, object] = field(default_factory=dict)
    left: Mapping[str, str] = field(default_factory=dict)
    died: Mapping[str, str] = field(default_factory=dict)
    untaken: Mapping[str, str] = field(default_factory=dict)
    kind: str = "probe"

    def of(self, name: str, kind: type[Seen]) -> Seen:
        """Return what a probe saw. Raises Skip, saying why, where it could not look, EvidenceError where something died."""
        if name in self.died:
            raise EvidenceError(self.died[name])
        if name in self.left:
            raise Skip(self.left[name])
        found = self.seen.get(name)
        if not isinstance(found, kind):
            raise Skip("the run ended before it")
        return found

    @property
    def subject(self) -> str:
        """Who was probed."""
        sides = [f"{side.name} {side.version} {side.dtype}" for side in (self.engine, self.trainer) if side is not None]
        return " beside ".join(sides)

    @property
    def unread(self) -> Mapping[str, str]:
        """Nothing: what could not be seen concerns the rules of one probe, and they say so."""
        return {}

    @property
    def counts(self) -> Mapping[str, int]:
        """Probes that looked."""
        return {"files": len(self.seen), "tensors": 0, "bytes": 0}

    @property
    def sections(self) -> tuple[Section, ...]:
        """The tables of the probes that have one, and what could not look."""
        found = [section for each in self.seen.values() for section in _tables(each)]
        told = {
            "Switches that the engine did not take": self.untaken,
            "Probes that could not look": self.left,
        }
        lists = (Section(t, lines=tuple(f"{name}: {why}" for name, why in of.items())) for t, of in told.items() if of)
        return (*found, *lists)


def _tables(seen: object) -> tuple[Section, ...]:
    if (several := getattr(seen, "sections", None)) is not None:
        return tuple(several)
    one = getattr(seen, "section", None)
    return () if one is None else (one,)


def asked(*names: str) -> Callable[[ProbeTrace], bool]:
    """Say whether a rule applies: one of its probes was to look."""
    return lambda trace: any(name in trace.asked for name in names)
