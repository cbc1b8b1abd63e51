"""How far two runs of logprobs of the same tokens are apart."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

Runs = Sequence[Sequence[float]]


@dataclass(frozen=True, slots=True)
class Gap:
    """tokens: compared. mult_prob_error: mean exp|Δ|, 1 is perfect. mean, largest: of |Δ|, nats. bias: mean Δ, one − other.

    k3: mean exp(r) − 1 − r with r = other − one, an estimate of KL(one‖other) where tokens were drawn from one. worst: the
    largest mean exp|Δ| of one sequence. Infinite where a logprob is not finite or the runs differ in length.
    """

    tokens: int
    mult_prob_error: float
    mean: float
    largest: float
    bias: float
    k3: float
    worst: float

    def as_dict(self) -> dict[str, Any]:
        """Return the numbers by name."""
        return {name: getattr(self, name) for name in self.__slots__}


def gap(one: Runs, other: Runs) -> Gap:
    """Compare sequence by sequence. Nothing compared is infinitely far apart: it never passes."""
    import numpy as np

    each = [_difference(a, b) for a, b in zip(one, other, strict=True)]
    if any(difference is None for difference in each) or not any(len(d) for d in each if d is not None):
        return Gap(0, inf, inf, inf, inf, inf, inf)
    differences = [difference for difference in each if difference is not None and len(difference)]
    whole = np.concatenate(differences)
    apart = np.abs(whole)
    with np.errstate(over="ignore"):
        k3 = float(np.mean(np.expm1(-whole) + whole))
        worst = max(float(np.exp(np.abs(difference)).mean()) for difference in differences)
        mult = float(np.exp(apart).mean())
    return Gap(len(whole), mult, float(apart.mean()), float(apart.max()), float(whole.mean()), k3, worst)


def _difference(one: Sequence[float], other: Sequence[float]) -> Any:
    import numpy as np

    a, b = np.asarray(one, np.float64), np.asarray(other, np.float64)
    if a.shape != b.shape or not (np.isfinite(a).all() and np.isfinite(b).all()):
        return None
    return a - b


def joined(found: Iterable[Runs]) -> list[Sequence[float]]:
    """Put several groups of sequences one after the other."""
    return [each for group in found for each in group]
