"""What a climb came to: the evidence of the rules that name the layer of the cause."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ckptcheck.attribution.ladder import AT_FLOOR, Climb, Step
from ckptcheck.attribution.rung import Layer
from ckptcheck.report import Section
from ckptcheck.rule import Problem

RESTS_ON: dict[Layer, str] = {
    "path": "weights",
    "precision": "weights",
    "routing": "weights",
}
"""Layer → the rung on which a verdict of it rests: unless the weights are equal, a path or a dtype is no cause of its own."""


@dataclass(frozen=True)
class Attribution:
    """sides: what each is called. measured: whether the floor was measured, or is what such dtypes usually have."""

    target: str
    climb: Climb
    sides: tuple[str, str] = ("engine", "trainer")
    measured: bool = False
    unread: Mapping[str, str] = field(default_factory=dict)
    kind: str = "attribution"

    @property
    def subject(self) -> str:
        """One line: who, how far apart, and how much of that is explained."""
        climb = self.climb
        parts = [" ↔ ".join(self.sides), f"{climb.tokens:,} tokens", f"mean |Δ| {climb.gap:.3g}"]
        parts.append(f"floor {climb.floor:.2g}{'' if self.measured else ' (assumed)'}")
        if not climb.healthy and climb.tokens:
            parts.append(f"{min(1.0, max(0.0, climb.explained)):.0%} of the excess explained")
        return " · ".join(parts)

    @property
    def counts(self) -> Mapping[str, int]:
        """Rungs tried, tokens compared."""
        tried = sum(step.climbed and not step.skipped for step in self.climb.steps)
        return {"files": 1, "tensors": tried, "bytes": self.climb.tokens}

    def caused(self, layer: Layer) -> list[Problem]:
        """Return what the rungs of a layer found, as findings."""
        return [self._problem(step) for step in self.climb.causes if step.layer == layer]

    def _problem(self, step: Step) -> Problem:
        assert step.experiment is not None
        words = f"{min(step.removed, 1.0):.0%} of the gap vanishes {step.experiment.words}: {step.experiment.cause}"
        if (rung := RESTS_ON.get(step.layer)) is not None:
            found = next((other for other in self.climb.steps if other.name == rung), None)
            if found is not None and found.skipped:
                words += f"; whether the weights are equal is not known ({found.skipped})"
            elif found is not None and found.climbed and found.experiment is None:
                words = f"bytes equal; {words}"
        return Problem(words, key=step.name, hint=step.experiment.hint)

    @property
    def sections(self) -> tuple[Section, ...]:
        """The ladder: what each rung did."""
        rows = []
        for step in self.climb.steps:
            if not step.climbed:
                said = "not needed"
            elif step.skipped:
                said = f"skipped: {step.skipped}"
            elif step.helped and step.experiment is not None:
                said = step.experiment.words
            else:
                said = "no" if step.experiment is None else f"no, not {step.experiment.words}"
            removed = f"{step.removed:.0%}" if step.helped else None
            rows.append((step.name, step.layer, step.before, step.after, removed, said))
        columns = ("rung", "layer", "mean |Δ|", "with it", "removed", "experiment")
        return (Section("The ladder", columns, tuple(rows)),) if self.climb.tokens and not self.healthy else ()

    @property
    def healthy(self) -> bool:
        """Whether the gap is at the floor."""
        return self.climb.healthy

    @property
    def limit(self) -> float:
        """The gap up to which it is at the floor."""
        return AT_FLOOR * self.climb.floor
