"""Summarises how far two runs of logprobs of the same tokens differ, by a few numbers of ckptcheck.rollouts.metrics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import inf, isfinite
from typing import TYPE_CHECKING, Any

from ckptcheck.rollouts import Rollout, build_rollouts

if TYPE_CHECKING:
    from ckptcheck.rollouts.metrics.logprob_metrics import LogprobMetrics as Metrics

Runs = Sequence[Sequence[float]]
"""Logprobs of several sequences, one inner sequence each."""
TIGHT, LOOSE = 1e-3, 1.05
"""Largest difference in nats between two set-ups in equal arithmetic, and mean of exp|Δ|, that count as equal. NeMo-RL's
diagnostics 4 and 2 have these numbers; the first allows 1e-3 of the logprob itself on top, which a logprob of -10 makes 11
times as much."""

FLOORS = {"float32": 1e-4}
COARSE_FLOOR = 5e-3
"""Mean |Δ| in nats that two ways to compute in such a dtype usually have at most; `parity calibrate` measures a model's."""


@dataclass(frozen=True, slots=True)
class GapSummary:
    """A few numbers of LogprobMetrics.

    All but `tokens` are infinite where there was nothing to compare, or a logprob is not finite.
    """

    tokens: int
    """Number of compared tokens."""
    mult_prob_error: float
    """Mean exp|Δ|."""
    mean: float
    """Mean |Δ| in nats."""
    largest: float
    """Largest |Δ| in nats."""
    k3: float
    """The k3 estimate of KL(one ‖ other), in nats."""
    worst: float
    """Largest mean exp|Δ| of one sequence."""

    def as_dict(self) -> dict[str, Any]:
        """Return the numbers by name."""
        return asdict(self)


def summarize_gap(one: Runs, other: Runs) -> GapSummary:
    """Compare two runs whose tokens were drawn from `one`. Where a comparison is impossible, the gap is infinite."""
    metrics = compute_run_metrics(one, other)
    if metrics is None:
        return GapSummary(0, inf, inf, inf, inf, inf)
    worst = max(float(error) for error in metrics.sequence_error if isfinite(error))
    return GapSummary(metrics.tokens, metrics.mult_prob_error, metrics.abs_mean, metrics.abs_max, metrics.k3, worst)


def compute_run_metrics(one: Runs, other: Runs) -> Metrics | None:
    """Return all metrics; None where lengths differ, where there are no logprobs, and where a logprob is not finite."""
    from ckptcheck.rollouts.metrics.logprob_metrics import compute_metrics

    pairs = list(zip(one, other, strict=True))
    if any(len(a) != len(b) for a, b in pairs):
        return None
    rows = [Rollout((0,) * (len(a) + 1), 1, engine=a, trainer=b) for a, b in pairs if len(a)]
    metrics = compute_metrics(build_rollouts(rows, double=True)) if rows else None
    return metrics if metrics is not None and not metrics.broken else None


def exceeds_rounding(gap: GapSummary, dtype: str) -> bool:
    """Return whether a gap exceeds rounding: in float32 by the largest difference, in narrower dtypes by the mean of exp|Δ|."""
    return gap.largest > TIGHT if dtype == "float32" else gap.mult_prob_error > LOOSE
