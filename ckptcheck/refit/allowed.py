"""How far a server may be from what it is held against, where nothing but its answers is known of its arithmetic."""

from __future__ import annotations

from collections.abc import Sequence

from ckptcheck.engines.base import Scores
from ckptcheck.refit.apart import Gap, apart

EXACT = 1e-4
"""Nats that two programs differ in float32: transformers, Megatron and both engines stay within 1e-5 of each other."""
COARSE = 0.1
"""Nats on average, where only 8 or 16 bits were computed with and nothing says what they cost this model."""


def between(one: Sequence[Scores], other: Sequence[Scores] | Sequence[Sequence[float]]) -> Gap | None:
    """Compare the logprobs of the same sequences by prefill; None where a side has none."""
    if not one or not other:
        return None
    there = [each.prompt if isinstance(each, Scores) else each for each in other]
    return apart([each.prompt for each in one], there)


def fits(gap: Gap, dtype: str, floor: Gap | None = None) -> bool:
    """Whether a gap is what arithmetic costs. dtype: of the server; floor: the gap of a side that is known to be right."""
    if "32" in dtype:
        return gap.most <= EXACT
    if floor is not None:
        return gap.most <= max(EXACT, 2 * floor.most)
    return gap.mean <= COARSE
