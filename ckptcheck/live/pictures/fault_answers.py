"""Draws the answers to each fault of a conformance run, at all its places."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckptcheck.linter.pictures import HeatCell, HeatMap, NoPicture, State
from ckptcheck.live.conformance.faults import TITLES
from ckptcheck.live.conformance.outcome import ANSWERS

if TYPE_CHECKING:
    from ckptcheck.linter.pictures import Picture, Tone
    from ckptcheck.live.conformance.outcome import Answer
    from ckptcheck.live.conformance.trace import ConformanceTrace

TONES: dict[Answer, tuple[Tone, str]] = {
    "harmless": ("quiet", "the receiver holds exactly what was sent"),
    "refused": ("good", "an error, and the receiver holds the old weights"),
    "framework": ("good", "an error, and the receiver holds something else"),
    "untried": ("gone", ""),
    "unanswered": ("change", "nothing came back in time"),
    "ckptcheck": ("warn", "success was reported, or nothing at all; only digests show the fault"),
    "silent": ("bad", "neither the transport nor digests show the fault"),
}
STATES = tuple(State(ANSWERS[answer], tone, meaning) for answer, (tone, meaning) in TONES.items())


def draw_answers(trace: ConformanceTrace, title: str) -> Picture:
    """Draw fault × answer; the places of a fault share a cell."""
    if not trace.outcomes:
        return NoPicture(title, "no fault was tried")
    kinds = list(dict.fromkeys(outcome.kind for outcome in trace.outcomes))
    answers = [answer for answer in ANSWERS if trace.find_outcomes(answer)]
    places: dict[tuple[int, int], dict[str, HeatCell]] = {}
    for outcome in trace.outcomes:
        notes = [outcome.detail, f"brought back by {outcome.recovery}" if outcome.recovery else ""]
        notes += ["a sound update did not bring it back"] * outcome.is_stuck
        notes += ["the update after it reported success and left wrong weights"] * outcome.is_wrong_afterwards
        cell = HeatCell(state=ANSWERS[outcome.answer], note="; ".join(filter(None, notes)), name=outcome.kind)
        inner = places.setdefault((kinds.index(outcome.kind), answers.index(outcome.answer)), {})
        inner[outcome.place if outcome.place not in inner else f"{outcome.place} ({len(inner) + 1})"] = cell
    return HeatMap(
        title,
        f"A row for each fault, and a column for each answer of {trace.target}; a click opens the places where the fault was put.",
        tuple(TITLES[kind] for kind in kinds),
        tuple(ANSWERS[answer] for answer in answers),
        {
            where: HeatCell(members=inner) if len(inner) > 1 else next(iter(inner.values()))
            for where, inner in places.items()
        },
        STATES,
        row_label="fault",
        column_label="answer",
        member_label="place",
    )
