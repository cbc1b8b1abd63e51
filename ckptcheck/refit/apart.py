"""How far two runs of logprobs are apart."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, isfinite


def apart(one: Sequence[float], other: Sequence[float]) -> float:
    """Return the largest difference of two runs of logprobs; infinite where they differ in length or one is not finite."""
    if len(one) != len(other):
        return inf
    return max(
        (abs(a - b) if isfinite(a) and isfinite(b) else inf for a, b in zip(one, other, strict=True)), default=0.0
    )
