"""The evidence of two training runs of the same work, such as one before and one after a change of the inference engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from ckptcheck.linter.evidence import EvidenceDefaults
from ckptcheck.linter.report import Section
from ckptcheck.rollouts.curves import CURVES, LEAST_STEPS, CurveComparison, compare_curves
from ckptcheck.rollouts.metadata import Metadata
from ckptcheck.rollouts.series import RolloutSeries
from ckptcheck.text.formatting import count, join_truncated


@dataclass(frozen=True)
class RunComparison(EvidenceDefaults):
    """The curves of a run, and those of the reference that it should follow."""

    run: RolloutSeries
    reference: RolloutSeries
    kind: str = "rollout-runs"

    @cached_property
    def comparisons(self) -> tuple[CurveComparison, ...]:
        """The curves that both runs have over enough common steps, in the order of `CURVES`."""
        ours, theirs = self.run.compute_curves(), self.reference.compute_curves()
        both = [
            compare_curves(curve, ours[curve], theirs[curve]) for curve in CURVES if curve in ours and curve in theirs
        ]
        return tuple(comparison for comparison in both if comparison is not None)

    @property
    def partings(self) -> list[CurveComparison]:
        """The curves that part, the earliest first; of one step, in the order of `CURVES`."""
        parted = [comparison for comparison in self.comparisons if comparison.parting is not None]
        return sorted(parted, key=lambda comparison: comparison.parting or 0)

    @property
    def worse(self) -> list[CurveComparison]:
        """The curves of the gap that part, and are worse than the reference, the earliest first."""
        return [comparison for comparison in self.partings if comparison.is_worse]

    @cached_property
    def steps(self) -> tuple[set[int], set[int]]:
        """The steps of the run, and those of the reference."""
        first, second = (
            {step for values in series.compute_curves().values() for step in values}
            for series in (self.run, self.reference)
        )
        return first, second

    def find_unlike_settings(self) -> list[str]:
        """Return what was recorded about both runs and is not the same, though it changes what a logprob is."""
        unlike = []
        for name, one, other in zip(SETTINGS, _read_settings(self.run), _read_settings(self.reference), strict=True):
            if one and other and one.isdisjoint(other):
                unlike.append(f"{name} {join_truncated(sorted(one))} ({join_truncated(sorted(other))})")
        return unlike

    @property
    def target(self) -> str:
        """Both runs."""
        return f"{self.run.target} against {self.reference.target}"

    @property
    def subject(self) -> str:
        """One line: the common steps, and which curve parts first."""
        run, reference = self.steps
        parts = [f"{count(len(run & reference), 'step')} in common"]
        if alone := [
            f"{len(own)} only in the {name}"
            for own, name in ((run - reference, "run"), (reference - run, "reference"))
            if own
        ]:
            parts.append(", ".join(alone))
        if self.partings:
            first = self.partings[0]
            parts.append(f"{first.curve.name} parts first, at step {first.parting}")
        elif self.comparisons:
            parts.append("no curve parts")
        return " · ".join(parts)

    @property
    def sections(self) -> tuple[Section, ...]:
        """The table of the curves, and each of them step by step for the JSON report and -v."""
        if not self.comparisons:
            return ()
        columns = ("curve", "parts at", "the run then", "the reference", "× noise", "verdict")
        rows = tuple(
            (each.curve.name, each.parting, *each.later, each.multiple if each.noise else None, describe_verdict(each))
            for each in self.comparisons
        )
        curves = tuple(
            (each.curve.name, step, ours, theirs, ours - theirs)
            for each in self.comparisons
            for step, ours, theirs in zip(each.steps, each.run, each.reference, strict=True)
        )
        return (
            Section("the run against the reference", columns, rows),
            Section(
                "step by step",
                ("curve", "step", "run", "reference", "difference"),
                curves,
                brief=(f"{count(len(curves), 'value')}: -v prints them, --format json holds them",),
            ),
        )

    @property
    def unread(self) -> Mapping[str, str]:
        """Always empty: a rule reports a reference that cannot be used."""
        return {}

    @property
    def counts(self) -> Mapping[str, int]:
        """The number of files of both runs."""
        return {"files": len(self.run.members) + len(self.reference.members), "tensors": 0, "bytes": 0}

    @property
    def least_steps(self) -> int:
        """Common steps that a comparison needs."""
        return LEAST_STEPS


def describe_verdict(comparison: CurveComparison) -> str:
    """Return the verdict on one curve in a few words."""
    if comparison.parting is None:
        return "follows"
    if comparison.curve.kind == "outcome":
        return "parts"
    return "parts, worse" if comparison.is_worse else "parts, no worse"


SETTINGS = (
    "model", "logprobs", "temperature", "top-p", "top-k", "the trainer's temperature", "the engine's dtype", "the trainer's dtype",
)  # fmt: skip
"""What two runs have to share besides the engine's version, if a difference between them is to show what that changed."""


def _read_settings(series: RolloutSeries) -> list[set[str]]:
    """Return for each of SETTINGS the values that the files of a run record, as texts."""
    values: list[set[str]] = [set() for _ in SETTINGS]
    for member in series.members:
        for known, value in zip(values, _list_settings(member.metadata), strict=True):
            if value not in (None, "", "unknown"):
                known.add(f"{value:g}" if isinstance(value, (int, float)) else str(value))
    return values


def _list_settings(metadata: Metadata) -> tuple[object, ...]:
    sampling, engine, trainer = metadata.sampling, metadata.engine, metadata.trainer
    return (
        metadata.model, metadata.logprobs, sampling.temperature, sampling.top_p, sampling.top_k,
        trainer and trainer.temperature, engine and engine.dtype, trainer and trainer.dtype,
    )  # fmt: skip
