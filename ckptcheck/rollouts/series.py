"""The evidence of several rollout files of one run, for rules that compare steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from textwrap import wrap

from ckptcheck.linter.evidence import EvidenceDefaults
from ckptcheck.linter.report import Section
from ckptcheck.rollouts.curves import CURVES, Curve, compute_curve
from ckptcheck.rollouts.metrics.logprob_metrics import LogprobMetrics, average_directions
from ckptcheck.rollouts.metrics.reference_gap import ReferenceGap
from ckptcheck.rollouts.series_member import SeriesMember
from ckptcheck.rollouts.thresholds import Thresholds
from ckptcheck.text.formatting import count


@dataclass(frozen=True)
class RolloutSeries(EvidenceDefaults):
    """Files in the order of their steps, or in the given order where a step is not recorded."""

    members: Sequence[SeriesMember]
    thresholds: Thresholds = field(default_factory=Thresholds)
    kind: str = "rollout-series"

    @classmethod
    def of(cls, members: Sequence[SeriesMember], gates: Thresholds) -> RolloutSeries:
        """Order the files by step; keep the given order where a file has none."""
        if all(member.step is not None for member in members):
            members = sorted(members, key=lambda member: member.step or 0)
        return cls(tuple(members), gates)

    @property
    def gaps(self) -> list[LogprobMetrics]:
        """The metrics of those files whose tokens the engine drew and that could be compared."""
        return [member.gap for member in self.members if member.gap is not None and member.gap.sampled_by == "engine"]

    @property
    def versions(self) -> list[tuple[int, int]]:
        """(step, newest version) of the files that have both."""
        return [
            (member.step, member.version)
            for member in self.members
            if member.step is not None and member.version is not None
        ]

    @property
    def references(self) -> dict[int, ReferenceGap]:
        """Step → how far the trainer is from the reference, where both have logprobs; of several files of a step the largest."""
        found: dict[int, ReferenceGap] = {}
        for member in self.members:
            gap, step = member.reference, member.step
            if gap is None or step is None or gap.side != "trainer":
                continue
            if step not in found or gap.abs_max > found[step].abs_max:
                found[step] = gap
        return dict(sorted(found.items()))

    @property
    def both_directions(self) -> tuple[float, float, float] | None:
        """mult_prob_error of the last file with the engine's tokens, of the last with the trainer's, and their mean.

        None where the files have one direction only.
        """
        latest: dict[str, LogprobMetrics] = {
            member.gap.sampled_by: member.gap for member in self.members if member.gap is not None
        }
        if len(latest) < 2:
            return None
        engine, trainer = latest["engine"], latest["trainer"]
        return engine.mult_prob_error, trainer.mult_prob_error, average_directions(engine, trainer)

    @property
    def target(self) -> str:
        """The first and the last file."""
        first, last = self.members[0].target, self.members[-1].target
        return first if len(self.members) == 1 else f"{first} … {last}"

    @property
    def subject(self) -> str:
        """One line with the number of files and the course of mult_prob_error."""
        parts = [count(len(self.members), "file")]
        if len(gaps := self.gaps) > 1:
            values = [gap.mult_prob_error for gap in gaps]
            parts.append(f"mult_prob_error from {values[0]:.5g} to {values[-1]:.5g}, at most {max(values):.5g}")
        if (errors := self.both_directions) is not None:
            parts.append(f"over both directions {errors[2]:.5g}")
        return " · ".join(parts)

    @property
    def sections(self) -> tuple[Section, ...]:
        """A table with the gap of every file."""
        rows = tuple(
            (
                member.target,
                member.step,
                member.gap.tokens,
                member.gap.mult_prob_error,
                member.gap.k3,
                member.gap.abs_mean,
            )
            for member in self.members
            if member.gap is not None
        )
        columns = ("file", "step", "tokens", "mult_prob_error", "k3", "mean |Δ|")
        brief = (f"{count(len(rows), 'file')}: -v prints them",)
        files = (Section("over the files", columns, rows, brief=brief),) if rows else ()
        return files + self._curve_sections

    def compute_curves(self) -> dict[Curve, dict[int, float]]:
        """Return each curve that some file has: step → value. A file that the trainer drew enters none."""
        curves = {curve: compute_curve(self.members, curve) for curve in CURVES}
        return {curve: values for curve, values in curves.items() if values}

    @property
    def _curve_sections(self) -> tuple[Section, ...]:
        """The table of the curves, a row for each step; () for fewer than two steps."""
        curves = self.compute_curves()
        steps = sorted({step for values in curves.values() for step in values})
        rows = tuple((step, *(values.get(step) for values in curves.values())) for step in steps)
        title = "curves: a trainer's metrics, step by step"
        columns = ("step", *(curve.name for curve in curves))
        return (Section(title, columns, rows, shorter=_summarize_curves(curves)),) if len(rows) > 1 else ()

    @property
    def unread(self) -> Mapping[str, str]:
        """Always empty, because every file has its own report."""
        return {}

    @property
    def counts(self) -> Mapping[str, int]:
        """The number of files; their own reports count what is in them."""
        return {"files": len(self.members), "tensors": 0, "bytes": 0}


WIDTH = 96
"""Characters of a line below a table, which is not wrapped."""


def _summarize_curves(curves: Mapping[Curve, Mapping[int, float]]) -> Section:
    """Return a table with a row for each curve that changes, and a line with the others."""
    rows, still = [], []
    for curve, values in curves.items():
        ordered = list(values.values())
        (low, at_low), (high, at_high) = _find_extremes(values)
        if low < high:
            rows.append((curve.name, ordered[0], low, at_low, high, at_high, ordered[-1]))
        else:
            still.append(f"{curve.name} {low:.4g}")
    lines = tuple(wrap(f"no change: {', '.join(still)}", WIDTH)) if still else ()
    return Section("curves", ("", "first", "lowest", "at step", "highest", "at step", "last"), tuple(rows), lines)


def _find_extremes(values: Mapping[int, float]) -> tuple[tuple[float, int], tuple[float, int]]:
    """Return the smallest and the largest value of a curve, each with the first of its steps."""
    pairs = [(value, step) for step, value in values.items()]
    return min(pairs), max(pairs, key=lambda pair: (pair[0], -pair[1]))
