"""Climbs the ladder: tries rung after rung, keeps what helps, and stops when the excess over the floor is explained."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from ckptcheck.attribution.rung import Experiment, Layer, Rung
from ckptcheck.attribution.state import State, start
from ckptcheck.attribution.world import Unable, World

EXPLAINED = 0.9
"""Share of the excess at which the ladder ends."""
LEAST = 0.15
"""Share of the excess that an experiment has to take away to count; LEAST_FITTED where it had a number to choose."""
LEAST_FITTED = 0.5
AT_FLOOR = 3.0
"""How many times the floor is still the floor: it is a mean over a few hundred tokens."""


@dataclass(frozen=True)
class Step:
    """What became of a rung. removed: its share of the first excess, 0 where nothing helped. skipped: why it was not tried.

    experiment: the best one, whether it helped or not.
    """

    name: str
    layer: Layer
    before: float = 0.0
    after: float = 0.0
    removed: float = 0.0
    experiment: Experiment | None = field(default=None, repr=False)
    skipped: str = ""
    climbed: bool = True

    @property
    def helped(self) -> bool:
        """Whether it is a cause."""
        return self.removed > 0


@dataclass(frozen=True)
class Climb:
    """gap: mean |Δ| at the start, nats; floor: what no cause explains; left: mean |Δ| with all causes taken away."""

    gap: float
    floor: float
    left: float
    tokens: int
    steps: tuple[Step, ...]

    @property
    def excess(self) -> float:
        """What there is to explain."""
        return max(0.0, self.gap - self.floor)

    @property
    def healthy(self) -> bool:
        """Whether there is nothing to explain."""
        return self.gap <= AT_FLOOR * self.floor

    @property
    def explained(self) -> float:
        """The share of the excess that the causes take away."""
        return (self.gap - self.left) / self.excess if self.excess else 1.0

    @property
    def causes(self) -> tuple[Step, ...]:
        """Rungs that helped, the one that removes most first."""
        return tuple(sorted((step for step in self.steps if step.helped), key=lambda step: -step.removed))


def climb(world: World, rungs: Sequence[Rung], floor: float, *, say: Callable[[str], None] = lambda _: None) -> Climb:
    """Try the rungs in order. floor: mean |Δ| under equal weights, nats, above 0. say: told what is being tried."""
    state = start(world.rollouts)
    first, tokens = state.gap, len(state.apart)
    excess = max(first - floor, 0.0)
    steps: list[Step] = []
    for rung in rungs:
        done = not tokens or state.gap <= AT_FLOOR * floor or (first - state.gap) >= EXPLAINED * excess
        if done:
            steps.append(Step(rung.name, rung.layer, state.gap, state.gap, climbed=False))
            continue
        say(rung.name)
        step, state = _tried(rung, world, state, floor, excess)
        steps.append(step)
    return Climb(first, floor, state.gap, tokens, tuple(steps))


def _tried(rung: Rung, world: World, state: State, floor: float, excess: float) -> tuple[Step, State]:
    unchanged = Step(rung.name, rung.layer, state.gap, state.gap)
    best: Experiment | None = None
    most, skipped = 0.0, ""
    try:
        for experiment in rung.tried(world, state):
            taken = state.gap if experiment.rest else state.over(experiment.after)
            if best is None or taken - experiment.after.gap > most:
                best, most = experiment, taken - experiment.after.gap
    except Unable as error:
        skipped = str(error)
    if best is None:
        return replace(unchanged, skipped=skipped), state
    removed = most / excess
    if best.rest:
        counts = best.after.gap <= AT_FLOOR * floor and removed >= LEAST
    else:
        counts = removed >= (LEAST_FITTED if best.fitted else LEAST) and most > floor
    found = replace(unchanged, after=best.after.gap, experiment=best)
    return (replace(found, removed=removed), best.after) if counts else (found, state)
