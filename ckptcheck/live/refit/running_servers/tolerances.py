"""Tolerances for the logprobs of a server, whose arithmetic is known only from its responses."""

from __future__ import annotations

from collections.abc import Sequence

from ckptcheck.live.refit.logprob_diff import LogprobDiff, compare_logprobs
from ckptcheck.live.runtime.engines.base import SequenceScores

EXACT = 1e-4
"""Nats by which two programs may differ in float32: transformers, Megatron and both engines agree within 1e-5."""
COARSE = 0.1
"""Nats by which they may differ on average with 8 or 16 bits, if the effect on this model is unknown."""


def compare_scores(
    one: Sequence[SequenceScores], other: Sequence[SequenceScores] | Sequence[Sequence[float]]
) -> LogprobDiff | None:
    """Compare the prefill logprobs of the same sequences; None if a side has none."""
    if not one or not other:
        return None
    other_logprobs = [scores.prompt_logprobs if isinstance(scores, SequenceScores) else scores for scores in other]
    return compare_logprobs([scores.prompt_logprobs for scores in one], other_logprobs)


def is_within_tolerance(difference: LogprobDiff, dtype: str, floor: LogprobDiff | None = None) -> bool:
    """Whether arithmetic explains a difference. dtype: of the server; floor: difference of a side that is known to be right."""
    if "32" in dtype:
        return difference.most <= EXACT
    if floor is not None:
        return difference.most <= max(EXACT, 2 * floor.most)
    return difference.mean <= COARSE
