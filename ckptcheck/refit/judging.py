"""What several rules ask of a trace."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, isfinite

from ckptcheck.refit.trace import Key, RefitTrace, Sync


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
