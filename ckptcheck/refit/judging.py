"""What several rules ask of a trace."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, isfinite

from ckptcheck.engines.base import Scores
from ckptcheck.refit.trace import Key, RefitTrace, Sync

EXACT = 1e-4
"""Nats that two programs differ in float32: transformers, Megatron and both engines stay within 1e-5 of each other."""
COARSE = 0.1
"""Nats on average, where only 8 or 16 bits were computed with and nothing says what they cost this model."""


@dataclass(frozen=True)
class Gap:
    """How far two sides are apart over all tokens, in nats; infinite where a logprob is missing or not finite."""

    largest: float
    mean: float

    def within(self, exact: bool, floor: Gap | None = None) -> bool:
        """Whether it is what arithmetic costs. exact: both sides in float32; floor: the gap of a side known to be right."""
        if exact:
            return self.largest <= EXACT
        if floor is not None:
            return self.largest <= max(EXACT, 2 * floor.largest)
        return self.mean <= COARSE


def gap(one: Sequence[Scores], other: Sequence[Scores] | Sequence[Sequence[float]]) -> Gap | None:
    """Compare the logprobs of the same sequences by prefill; None where a side has none."""
    if not one or not other:
        return None
    there = [each.prompt if isinstance(each, Scores) else each for each in other]
    pairs = list(zip((each.prompt for each in one), there, strict=True))
    if any(len(a) != len(b) for a, b in pairs):
        return Gap(inf, inf)
    found = [apart([a], [b]) for here, against in pairs for a, b in zip(here, against, strict=True)]
    return Gap(max(found, default=0.0), sum(found) / max(1, len(found)))


def apart(one: Sequence[float], other: Sequence[float]) -> float:
    """Return the largest difference of two runs of logprobs; infinite where they differ in length or one is not finite."""
    if len(one) != len(other):
        return inf
    return max(
        (abs(a - b) if isfinite(a) and isfinite(b) else inf for a, b in zip(one, other, strict=True)), default=0.0
    )


def changed(sync: Sync) -> set[Key]:
    """Return parameters that differ from the cold load and were written whole."""
    return {
        key for key, (entry, _) in sync.differing.items() if entry.kind == "parameter" and key not in sync.leftovers
    }


def stale(trace: RefitTrace, sync: Sync) -> set[Key]:
    """Return parameters that are what they were before the last step, and should not be."""
    before = next((other for other in reversed(trace.syncs[: sync.number - 1]) if other.step < sync.step), None)
    if before is None:
        return set()
    return {
        key
        for key in changed(sync)
        if key in before.manifest and before.manifest[key].digest == sync.manifest[key].digest
    }
