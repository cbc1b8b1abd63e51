"""Draws the time of each phase of a trial, and how far its logprobs are apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ckptcheck.linter.pictures import Curves, Series, choose_scale, keep_finite
from ckptcheck.live.pictures.token_lines import draw_token_lines, subtract_logprobs
from ckptcheck.live.refit.trace_queries import compare_scoring
from ckptcheck.text.formatting import format_bytes

if TYPE_CHECKING:
    from ckptcheck.live.refit.observations import Observations, Scoring

PHASES = ("export and send", "update", "digests of what was sent", "check")
"""The phases: trainer and transport, the engine's load of the weights, and the trial's own inspection."""


def draw_phases(trace: Observations, title: str) -> Curves | None:
    """Draw the seconds of each phase over the syncs; None without a sync that has a time."""
    lengths = [
        (sync.seconds - sync.answer.seconds, sync.answer.seconds, sync.sent_seconds, sync.check_seconds)
        for sync in trace.syncs
    ]
    if not any(map(any, lengths)):
        return None
    largest = max(trace.syncs, key=lambda sync: sync.nbytes)
    caption = (
        f"Of up to {format_bytes(largest.nbytes)} in {largest.buckets:,} buckets. A job has the first two phases: what trainer and"
        " transport take, and what the engine takes to load the weights. The others are what the trial adds to look."
    )
    series = tuple(
        Series(phase, tuple(seconds or None for seconds in column))
        for phase, column in zip(PHASES, zip(*lengths, strict=True), strict=True)
    )
    labels = tuple(f"sync {sync.number}, step {sync.step}" for sync in trace.syncs)
    return Curves(title, caption, labels, (*series, Series("together", tuple(map(sum, lengths)))), "sync", "seconds")


def draw_gap_to_cold_load(trace: Observations, title: str) -> Curves | None:
    """Draw the largest difference from a cold load after each sync; None without scores after a sync."""
    scorings = [scoring for scoring in trace.scorings if scoring.after_sync]
    diffs = [compare_scoring(scoring) for scoring in scorings]
    allowed = trace.noise_floor.cold_load_tolerance
    lines = {
        "by prefill": [diff.prefill.most for diff in diffs],
        "by decoding": [diff.decode.most for diff in diffs],
        "allowed": [allowed] * len(diffs),
    }
    caption = "The largest difference of a token, beside what the engine's own noise allows."
    return _draw_lines(title, caption, scorings, lines, ("REF010",))


def draw_gap_to_trainer(trace: Observations, title: str) -> Curves | None:
    """Draw the difference from the trainer before and after each sync; None without scores."""
    diffs = [compare_scoring(scoring) for scoring in trace.scorings]
    allowed = trace.noise_floor.trainer_tolerance
    lines: dict[str, Sequence[float | None]] = {
        "largest": [diff.trainer.most for diff in diffs],
        "mean": [diff.trainer.mean for diff in diffs],
        "largest, decoding the trainer's tokens": [diff.forced.most if diff.forced else None for diff in diffs],
        "largest that is allowed": [allowed.most] * len(diffs),
        "mean that is allowed": [allowed.mean] * len(diffs),
    }
    caption = (
        "The cold load is before any sync. The limits come from how far each side is from itself over the same weights."
    )
    return _draw_lines(title, caption, trace.scorings, lines, ("REF012", "REF013"))


def draw_token_gaps(trace: Observations, title: str) -> Curves | None:
    """Draw engine minus trainer for each token, once for each scoring of the sequences."""
    lines = {
        _label(scoring): subtract_logprobs((one.prompt_logprobs for one in scoring.engine), scoring.trainer)
        for scoring in trace.scorings
    }
    caption = (
        "Engine minus trainer for each token of the scored sequences, in their order. A name below hides its line."
    )
    return draw_token_lines(title, caption, lines, ("REF010", "REF012"))


def _draw_lines(
    title: str,
    caption: str,
    scorings: Sequence[Scoring],
    lines: Mapping[str, Sequence[float | None]],
    codes: tuple[str, ...],
) -> Curves | None:
    """Return the curves that have a number; None if all are empty."""
    series = tuple(
        Series(name, tuple(map(keep_finite, values)))
        for name, values in lines.items()
        if any(value is not None for value in values)
    )
    if not series:
        return None
    numbers = [value for each in series for value in each.values]
    if None in numbers:
        caption += " A gap in a line: not measured, or not a finite number."
    return Curves(
        title, caption, tuple(map(_label, scorings)), series, "after", "nats", choose_scale(numbers), codes=codes
    )


def _label(scoring: Scoring) -> str:
    return f"sync {scoring.after_sync}" if scoring.after_sync else "cold load"
