"""The difference between two lists of logprobs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf, isfinite


@dataclass(frozen=True, slots=True)
class LogprobDiff:
    """The largest and the mean difference, in nats; infinite if lists differ in length or a logprob is not finite."""

    most: float = 0.0
    mean: float = 0.0

    def times(self, factor: float) -> LogprobDiff:
        """Return the differences multiplied by a factor."""
        return LogprobDiff(factor * self.most, factor * self.mean)

    def within(self, other: LogprobDiff) -> bool:
        """Whether neither the largest nor the mean difference exceeds the other's."""
        return self.most <= other.most and self.mean <= other.mean

    def __or__(self, other: LogprobDiff) -> LogprobDiff:
        """Return the larger of the two largest, and the larger of the two means."""
        return LogprobDiff(max(self.most, other.most), max(self.mean, other.mean))


def compare_logprobs(ones: Iterable[Sequence[float]], others: Iterable[Sequence[float]]) -> LogprobDiff:
    """Compare lists of logprobs pair by pair."""
    differences: list[float] = []
    for one, other in zip(ones, others, strict=True):
        if len(one) != len(other):
            return LogprobDiff(inf, inf)
        differences += [abs(a - b) if isfinite(a) and isfinite(b) else inf for a, b in zip(one, other, strict=True)]
    return LogprobDiff(max(differences), sum(differences) / len(differences)) if differences else LogprobDiff()
