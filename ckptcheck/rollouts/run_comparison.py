"""The evidence of two training runs of the same work, such as one before and one after a change of the inference engine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from ckptcheck.linter.evidence import EvidenceDefaults
from ckptcheck.linter.report import Section
from ckptcheck.rollouts.curves import LEAST_STEPS, CurveComparison, compare_curves
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
        both = [compare_curves(curve, values, theirs[curve]) for curve, values in ours.items() if curve in theirs]
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
        """Return what was recorded about both runs and is not the same, what changes a logprob first.

        The engine's own name and version are what such a comparison is for: they come last, and not alone.
        """
        ours, theirs = _read_settings(self.run), _read_settings(self.reference)
        unlike = [
            f"{name} {join_truncated(sorted(values))} ({join_truncated(sorted(theirs[name]))})"
            for name, values in sorted(ours.items(), key=_rank_setting)
            if name in theirs and values.isdisjoint(theirs[name])
        ]
        return [] if len(unlike) == 1 and unlike[0].startswith(f"{ENGINE} ") else unlike

    @property
    def target(self) -> str:
        """Both runs."""
        return f"{self.run.target} against {self.reference.target}"

    @property
    def subject(self) -> str:
        """One line: the common steps, and which curve diverges first."""
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
            parts.append(f"{first.curve.name} diverges first, at step {first.parting}")
        elif self.comparisons:
            parts.append("no curve diverges")
        return " · ".join(parts)

    @property
    def sections(self) -> tuple[Section, ...]:
        """The table of the curves, and each of them step by step for the JSON report and -v."""
        if not self.comparisons:
            return ()
        columns = ("curve", "diverges at", "the run then", "the reference", "× noise", "verdict")
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
    return "diverges, worse" if comparison.is_worse else "diverges, no worse"


ENGINE = "the engine"
CHANGE_LOGPROBS = (
    "model", "logprobs", "temperature", "top-p", "top-k", "penalty", "trainer's temperature", "dtype", "fp32", "prefix", "radix",
    "cascade", "chunk", "attention", "batch_invariant", "eager", "graph", "compil", "precision", "specul", "async", "overlap",
    "parallel", "tp_size", "layout", "the trainer",
)  # fmt: skip
"""What changes a logprob, parts of the names of settings, in the order of the layers: semantics, how it is computed, objective."""
OF_THE_MACHINE = frozenset({
    "gpus", "sees", "session", "weight_transfer", "sleep", "follows", "images", "stock_logprobs", "nccl", "backend", "ranks",
})  # fmt: skip
"""Facts of a recorded side that name its machine or its transport, or repeat another setting."""


def _rank_setting(setting: tuple[str, set[str]]) -> tuple[int, str]:
    name = setting[0]
    last = len(CHANGE_LOGPROBS)
    if name == ENGINE:
        return last + 1, name
    return next((place for place, part in enumerate(CHANGE_LOGPROBS) if part in name), last), name


def _read_settings(series: RolloutSeries) -> dict[str, set[str]]:
    """Return setting → the values that the files of a run record, as texts; without the ones that none records."""
    found: dict[str, set[str]] = {}
    for member in series.members:
        for name, value in _list_settings(member.metadata):
            if value not in (None, "", "unknown", "None"):
                known = found.setdefault(name, set())
                is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
                known.add(f"{value:g}" if is_number else str(value))
    return found


def _list_settings(metadata: Metadata) -> Iterator[tuple[str, object]]:
    sampling = metadata.sampling
    yield from (("model", metadata.model), ("logprobs", metadata.logprobs))
    for name in SAMPLING:
        yield (
            name.replace("_p", "-p").replace("_k", "-k") if name in ("top_p", "top_k") else name,
            getattr(sampling, name),
        )
    yield from (("clip_low", metadata.clip_low), ("clip_high", metadata.clip_high))
    yield "stop tokens", ", ".join(map(str, metadata.stop_tokens))
    for side, scorer in ((ENGINE, metadata.engine), ("the trainer", metadata.trainer)):
        if scorer is not None:
            yield side, " ".join(filter(None, (scorer.name, scorer.version)))
            yield from ((f"{side}'s {name}", getattr(scorer, name)) for name in ("temperature", "dtype", "layout"))
            yield from (
                (f"{side}'s {name}", value) for name, value in scorer.facts.items() if name not in OF_THE_MACHINE
            )


SAMPLING = (
    "temperature", "top_p", "top_k", "presence_penalty", "frequency_penalty", "repetition_penalty", "max_tokens", "ignore_eos",
)  # fmt: skip
"""The fields of `SamplingInfo` that two runs share; each has its own seeds."""
