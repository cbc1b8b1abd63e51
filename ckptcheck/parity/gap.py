"""How far two runs of logprobs of the same tokens are apart: a few of the numbers of ckptcheck.metrics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import inf, isfinite
from typing import TYPE_CHECKING, Any

from ckptcheck.rollouts import Rollout, gathered

if TYPE_CHECKING:
    from ckptcheck.metrics.gap import Gap as Metrics

Runs = Sequence[Sequence[float]]


@dataclass(frozen=True, slots=True)
class Gap:
    """See ckptcheck.metrics.gap.Gap. mean, largest: of |Δ|, in nats. k3: of KL(one ‖ other). worst: mean exp|Δ| of one sequence.

    All are infinite where there was nothing to compare, or a logprob is not finite.
    """

    tokens: int
    mult_prob_error: float
    mean: float
    largest: float
    k3: float
    worst: float

    def as_dict(self) -> dict[str, Any]:
        """Return the numbers by name."""
        return asdict(self)


def gap(one: Runs, other: Runs) -> Gap:
    """Compare sequence by sequence; tokens were drawn from `one`. What cannot be compared is infinitely far apart."""
    found = metrics(one, other)
    if found is None:
        return Gap(0, inf, inf, inf, inf, inf)
    worst = max(float(each) for each in found.sequence_error if isfinite(each))
    return Gap(found.tokens, found.mult_prob_error, found.abs_mean, found.abs_max, found.k3, worst)


def metrics(one: Runs, other: Runs) -> Metrics | None:
    """Return all metrics; None for runs of different lengths, for nothing at all, and where a logprob is not finite."""
    from ckptcheck.metrics.gap import gap as measured

    pairs = list(zip(one, other, strict=True))
    if any(len(a) != len(b) for a, b in pairs):
        return None
    rows = [Rollout((0,) * (len(a) + 1), 1, engine=a, trainer=b) for a, b in pairs if len(a)]
    found = measured(gathered(rows, double=True)) if rows else None
    return found if found is not None and not found.broken else None
