"""How far two runs of logprobs are apart."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf, isfinite


@dataclass(frozen=True, slots=True)
class Gap:
    """The largest difference and the mean one, in nats; infinite where runs differ in length or one is not finite."""

    most: float = 0.0
    mean: float = 0.0

    def times(self, factor: float) -> Gap:
        """Return so many times this."""
        return Gap(factor * self.most, factor * self.mean)

    def within(self, other: Gap) -> bool:
        """Whether neither the largest nor the mean is larger than the other's."""
        return self.most <= other.most and self.mean <= other.mean

    def __or__(self, other: Gap) -> Gap:
        """Return the larger of both, each by itself."""
        return Gap(max(self.most, other.most), max(self.mean, other.mean))


def apart(ones: Iterable[Sequence[float]], others: Iterable[Sequence[float]]) -> Gap:
    """Compare runs pair by pair."""
    found: list[float] = []
    for one, other in zip(ones, others, strict=True):
        if len(one) != len(other):
            return Gap(inf, inf)
        found += [abs(a - b) if isfinite(a) and isfinite(b) else inf for a, b in zip(one, other, strict=True)]
    return Gap(max(found), sum(found) / len(found)) if found else Gap()
