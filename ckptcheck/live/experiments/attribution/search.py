"""Searches for the causes of a gap: runs experiments in order, keeps the changes that shrink it, stops when it is explained."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ckptcheck.linter.evidence import EvidenceDefaults
from ckptcheck.linter.report import Section
from ckptcheck.linter.rule import Problem, Severity, Skip
from ckptcheck.live.experiments.attribution import left_out_tokens
from ckptcheck.live.experiments.attribution.experiment import (
    Backend,
    GapExperiment,
    Layer,
    SearchState,
    Trial,
    initial_state,
)

EXPLAINED = 0.9
"""Share of the excess over the floor at which the search ends."""
LEAST = 0.15
"""Share of the excess that a trial has to remove to count as a cause."""
LEAST_FITTED = 0.5
"""The same share for a trial that fitted a number."""
AT_FLOOR = 3.0
"""A gap of up to this many times the floor counts as the floor, which is a mean over a few hundred tokens only."""
RESTS_ON: dict[Layer, str] = {
    "path": "weights",
    "precision": "weights",
    "routing": "weights",
}
"""Layer → the experiment that its verdict depends on: unless the weights are equal, a path or a dtype is no separate cause."""
SEVERITIES: dict[Layer, Severity] = {"precision": "warning", "routing": "warning", "objective": "info"}
"""Layer → how grave a cause there is; in every other layer it is an error. Rounding is no bug, and a lag is intended."""


@dataclass(frozen=True)
class SearchStep:
    """The result of one experiment."""

    name: str
    layer: Layer
    before: float = 0.0
    """Mean |Δ| before the experiment, in nats."""
    after: float = 0.0
    """Mean |Δ| with its best trial, in nats."""
    removed: float = 0.0
    """Share of the initial excess that the experiment removes; 0 where no trial helped."""
    trial: Trial | None = field(default=None, repr=False)
    """The best trial, whether it helped or not."""
    skipped: str = ""
    """Why the experiment could not run; "" if it could."""
    was_run: bool = True
    """False where earlier experiments had explained the gap already."""
    without_older: bool = False
    """The experiment was not needed because the two sides agree where older weights are not in play."""

    @property
    def is_cause(self) -> bool:
        """Whether the experiment found a cause."""
        return self.removed > 0


@dataclass(frozen=True)
class SearchResult:
    """The result of all experiments."""

    gap: float
    """Mean |Δ| at the start, in nats."""
    floor: float
    """Mean |Δ| with equal weights, in nats, which no cause explains."""
    remaining_gap: float
    """Mean |Δ| with all causes removed, in nats."""
    tokens: int
    """How many tokens were compared."""
    steps: tuple[SearchStep, ...]

    @property
    def excess(self) -> float:
        """The gap above the floor, in nats."""
        return max(0.0, self.gap - self.floor)

    @property
    def is_at_floor(self) -> bool:
        """Whether the gap is at the floor, so that there is nothing to explain."""
        return self.gap <= AT_FLOOR * self.floor

    @property
    def explained(self) -> float:
        """The share of the excess that the causes remove."""
        return (self.gap - self.remaining_gap) / self.excess if self.excess else 1.0

    @property
    def causes(self) -> tuple[SearchStep, ...]:
        """The experiments that helped, the one that removes most first."""
        return tuple(sorted((step for step in self.steps if step.is_cause), key=lambda step: -step.removed))


def run_search(
    backend: Backend, experiments: Sequence[GapExperiment], floor: float, *, say: Callable[[str], None] = lambda _: None
) -> SearchResult:
    """Run the experiments in order. Those of the layer `objective` come last; all others run without tokens of older weights.

    floor: mean |Δ| with equal weights, in nats, above 0. say: called with the name of each experiment before it runs.
    """
    experiments = [
        experiment for experiment in experiments if not experiment.needs or experiment.needs in backend.rollouts
    ]
    recorded = initial_state(backend.rollouts)
    gap, tokens = recorded.gap, len(recorded.abs_diff)
    has_objective = any(experiment.layer == "objective" for experiment in experiments)
    state = left_out_tokens.set_aside(backend, recorded) if has_objective and gap > AT_FLOOR * floor else recorded
    part = _Part(state.gap, floor, len(state.abs_diff) / tokens if tokens else 1.0, state is not recorded)
    whole = max(gap - floor, 0.0)
    steps: list[SearchStep] = []
    for experiment in experiments:
        if experiment.layer == "objective" and part.without_older:
            state, part = left_out_tokens.bring_back(recorded, state, backend.rollouts), _Part(gap, floor)
        if not tokens or part.is_explained(state):
            unchanged = SearchStep(experiment.name, experiment.layer, state.gap, state.gap)
            steps.append(replace(unchanged, was_run=False, without_older=part.without_older))
            continue
        say(experiment.name)
        step, state = _run_experiment(experiment, backend, state, floor, part.excess)
        steps.append(replace(step, removed=step.removed * part.excess * part.share / whole if whole else 0.0))
    return SearchResult(gap, floor, state.gap, tokens, tuple(steps))


@dataclass(frozen=True)
class _Part:
    """The tokens that a part of the experiments compares: all, or those without the ones of older weights."""

    gap: float
    """Mean |Δ| over them before the experiments, in nats."""
    floor: float
    share: float = 1.0
    """How many of all compared tokens they are."""
    without_older: bool = False
    """Whether tokens of older weights are left out, or scored with the trainer's weights."""

    @property
    def excess(self) -> float:
        """The gap above the floor, in nats."""
        return max(self.gap - self.floor, 0.0)

    def is_explained(self, state: SearchState) -> bool:
        """Whether no experiment is needed any more."""
        return state.gap <= AT_FLOOR * self.floor or self.gap - state.gap >= EXPLAINED * self.excess


def _run_experiment(
    experiment: GapExperiment, backend: Backend, state: SearchState, floor: float, excess: float
) -> tuple[SearchStep, SearchState]:
    """Run one experiment; return its step, and the state to continue from. excess: the initial gap above the floor, in nats."""
    unchanged = SearchStep(experiment.name, experiment.layer, state.gap, state.gap)
    best: Trial | None = None
    reduction, skipped = 0.0, ""
    try:
        for trial in experiment.run(backend, state):
            gap_before = state.gap if trial.only_drops_tokens else state.gap_over(trial.state)
            if best is None or gap_before - trial.state.gap > reduction:
                best, reduction = trial, gap_before - trial.state.gap
    except Skip as skip:
        skipped = str(skip)
    if best is None:
        return replace(unchanged, skipped=skipped), state
    removed = reduction / excess
    if best.only_drops_tokens:
        is_cause = best.state.gap <= AT_FLOOR * floor and removed >= LEAST
    else:
        is_cause = removed >= (LEAST_FITTED if best.is_fitted else LEAST) and reduction > floor
    step = replace(unchanged, after=best.state.gap, trial=best)
    return (replace(step, removed=removed), best.state) if is_cause else (step, state)


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
                result = "no" if step.trial is None else f"no: it stays {step.trial.description}"
            removed = f"{step.removed:.0%}" if step.is_cause else None
            rows.append((step.name, step.layer, step.before, step.after, removed, result))
        if not self.search.tokens or self.is_at_floor:
            return ()
        columns = ("experiment", "layer", "mean |Δ|", "with it", "removed", "result")
        skipped: dict[str, list[str]] = {}
        for step in self.search.steps:
            if step.skipped and step.was_run:
                skipped.setdefault(step.skipped, []).append(step.name)
        ran = tuple(
            row for row, step in zip(rows, self.search.steps, strict=True) if not (step.skipped and step.was_run)
        )
        lines = tuple(f"skipped, as {reason}: {', '.join(names)}" for reason, names in skipped.items())
        return (Section("Experiments", columns, tuple(rows), shorter=Section("Experiments", columns, ran, lines)),)

    @property
    def is_at_floor(self) -> bool:
        """Whether the gap is at the floor."""
        return self.search.is_at_floor

    @property
    def limit(self) -> float:
        """The largest gap that still counts as the floor, in nats."""
        return AT_FLOOR * self.search.floor
