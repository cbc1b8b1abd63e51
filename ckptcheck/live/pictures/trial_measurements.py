"""Draws how far the logprobs of a trial's engine are from its trainer's: after each sync, and token by token."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckptcheck.linter.pictures import Curves, Series, choose_scale, keep_finite
from ckptcheck.live.refit.trace_queries import compare_scoring

if TYPE_CHECKING:
    from ckptcheck.live.refit.observations import Observations, Scoring

MOST_TOKENS = 600
"""Tokens that are drawn: the first ones."""


def draw_gap_to_trainer(trace: Observations, title: str) -> Curves | None:
    """Draw the difference from the trainer before and after each sync; None without scores."""
    if not trace.scorings:
        return None
    diffs = [compare_scoring(scoring) for scoring in trace.scorings]
    allowed = trace.noise_floor.trainer_tolerance
    lines: dict[str, list[float | None]] = {
        "largest": [diff.trainer.most for diff in diffs],
        "mean": [diff.trainer.mean for diff in diffs],
        "largest, decoding the trainer's tokens": [diff.forced.most if diff.forced else None for diff in diffs],
        "largest that is allowed": [allowed.most] * len(diffs),
        "mean that is allowed": [allowed.mean] * len(diffs),
    }
    series = tuple(
        Series(name, tuple(map(keep_finite, values)))
        for name, values in lines.items()
        if any(value is not None for value in values)
    )
    caption = (
        "The cold load is before any sync. The limits come from how far each side is from itself over the same weights."
        " A gap in a line: not measured, or not a finite number."
    )
    scale = choose_scale([value for each in series for value in each.values])
    labels = tuple(map(_label, trace.scorings))
    return Curves(title, caption, labels, series, "after", "nats", scale, codes=("REF012", "REF013"))


def draw_token_gaps(trace: Observations, title: str) -> Curves | None:
    """Draw engine minus trainer for each token, once for each scoring of the sequences; a number that is not finite is a gap."""
    lines = {
        _label(scoring): [
            keep_finite(engine - trainer)
            for scores, trainer_scores in zip(scoring.engine, scoring.trainer, strict=False)
            for engine, trainer in zip(scores.prompt_logprobs, trainer_scores, strict=False)
        ][:MOST_TOKENS]
        for scoring in trace.scorings
    }
    longest = max(map(len, lines.values()), default=0)
    if not longest:
        return None
    series = tuple(Series(name, (*values, *[None] * (longest - len(values)))) for name, values in lines.items())
    caption = (
        "Engine minus trainer for each token of the scored sequences, in their order. A name below hides its line."
    )
    return Curves(title, caption, tuple(range(1, longest + 1)), series, "token", "nats", codes=("REF010", "REF012"))


def _label(scoring: Scoring) -> str:
    return f"sync {scoring.after_sync}" if scoring.after_sync else "cold load"
