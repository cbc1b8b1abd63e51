"""The result of a search as evidence for the rules that name the layer of the cause."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ckptcheck.linter.evidence import EvidenceDefaults
from ckptcheck.linter.report import Section
from ckptcheck.linter.rule import Problem, Severity
from ckptcheck.live.experiments.attribution.experiment import Layer
from ckptcheck.live.experiments.attribution.search import AT_FLOOR, SearchResult, SearchStep

RESTS_ON: dict[Layer, str] = {
    "path": "weights",
    "precision": "weights",
    "routing": "weights",
}
"""Layer → the experiment that its verdict depends on: unless the weights are equal, a path or a dtype is no separate cause."""

SEVERITIES: dict[Layer, Severity] = {"precision": "warning", "routing": "warning", "objective": "info"}
"""Layer → how grave a cause there is; in every other layer it is an error. Rounding is no bug, and a lag is intended."""


@dataclass(frozen=True)
class Attribution(EvidenceDefaults):
    """The evidence of one search."""

    target: str
    """The rollouts, as the user named them."""
    search: SearchResult
    sides: tuple[str, str] = ("engine", "trainer")
    """What the report calls the engine and the trainer."""
    has_measured_floor: bool = False
    """Whether the floor was measured; if not, it is assumed from the dtypes."""
    unread: Mapping[str, str] = field(default_factory=dict)
    """Files that could not be read → why."""
    kind: str = "attribution"

    @property
    def subject(self) -> str:
        """One line with the sides, the gap, the floor, and the share of the excess that is explained."""
        search = self.search
        parts = [" ↔ ".join(self.sides), f"{search.tokens:,} tokens", f"mean |Δ| {search.gap:.3g}"]
        parts.append(f"floor {search.floor:.2g}{'' if self.has_measured_floor else ' (assumed)'}")
        if not search.is_at_floor and search.tokens:
            parts.append(f"{min(1.0, max(0.0, search.explained)):.0%} of the excess explained")
        return " · ".join(parts)

    @property
    def counts(self) -> Mapping[str, int]:
        """The numbers of files, of experiments that ran (as tensors), and of tokens compared (as bytes)."""
        tried = sum(step.was_run and not step.skipped for step in self.search.steps)
        return {"files": 1, "tensors": tried, "bytes": self.search.tokens}

    def list_causes(self) -> list[Problem]:
        """Return the causes that the experiments found, as findings."""
        return [self._problem(step) for step in self.search.causes]

    def _problem(self, step: SearchStep) -> Problem:
        """Return the finding of a cause; where its layer depends on equal weights, it says whether they are."""
        assert step.trial is not None
        message = f"{min(step.removed, 1.0):.0%} of the gap vanishes {step.trial.description}: {step.trial.cause}"
        if (prerequisite := RESTS_ON.get(step.layer)) is not None:
            prerequisite_step = next(
                (candidate for candidate in self.search.steps if candidate.name == prerequisite), None
            )
            if prerequisite_step is not None and prerequisite_step.skipped:
                message += f"; ckptcheck could not compare the weights ({prerequisite_step.skipped})"
            elif prerequisite_step is not None and prerequisite_step.was_run and prerequisite_step.trial is None:
                message = f"bytes equal; {message}"
        return Problem(message, key=step.name, hint=step.trial.hint, severity=SEVERITIES.get(step.layer))

    @property
    def sections(self) -> tuple[Section, ...]:
        """The table of experiments, with the change and the share of the gap that each removed."""
        rows = []
        for step in self.search.steps:
            if not step.was_run and step.without_older:
                result = "ruled out: without a lag the two sides agree"
            elif not step.was_run:
                result = "not needed"
            elif step.skipped:
                result = f"skipped: {step.skipped}"
            elif step.is_cause and step.trial is not None:
                result = step.trial.description
            else:
                result = "no" if step.trial is None else f"no, not {step.trial.description}"
            removed = f"{step.removed:.0%}" if step.is_cause else None
            rows.append((step.name, step.layer, step.before, step.after, removed, result))
        columns = ("experiment", "layer", "mean |Δ|", "with it", "removed", "result")
        return (Section("Experiments", columns, tuple(rows)),) if self.search.tokens and not self.is_at_floor else ()

    @property
    def is_at_floor(self) -> bool:
        """Whether the gap is at the floor."""
        return self.search.is_at_floor

    @property
    def limit(self) -> float:
        """The largest gap that still counts as the floor, in nats."""
        return AT_FLOOR * self.search.floor
