"""Searches for the causes of a gap: runs experiments in order, keeps the changes that shrink it, stops when it is explained."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from ckptcheck.linter.rule import Skip
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
