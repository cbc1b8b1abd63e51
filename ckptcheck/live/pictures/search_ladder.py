"""Draws a search for causes as a ladder: what each experiment removed of the gap."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckptcheck.linter.pictures import Curves, Mark, NoPicture, Series

if TYPE_CHECKING:
    from ckptcheck.linter.pictures import Picture
    from ckptcheck.live.experiments.attribution.search import SearchStep
    from ckptcheck.live.experiments.attribution.trace import Attribution

GAP = "gap that stays"


def draw_ladder(evidence: Attribution, title: str) -> Picture:
    """Draw the remaining gap after each experiment, beside the floor; each step describes its experiment."""
    search = evidence.search
    if not search.tokens:
        return NoPicture(title, "no token was compared")
    if search.is_at_floor:
        return NoPicture(title, f"the gap of {search.gap:.3g} nats is at the floor: there is nothing to remove")
    steps = [step for step in search.steps if step.was_run]
    gaps = (search.gap, *(step.after if step.is_cause else step.before for step in steps), search.remaining_gap)
    notes = [Mark(GAP, at, note) for at, step in enumerate(steps, 1) if (note := _describe_step(step))]
    return Curves(
        title,
        "From left to right, each experiment scores the tokens again with one change more. What it removes is a cause; the rest "
        "goes on to the next one. The floor is what equal weights show too.",
        ("as recorded", *(step.name for step in steps), "with all of them"),
        (Series(GAP, gaps), Series("floor", (search.floor,) * len(gaps), "good")),
        "experiment",
        "nats",
        steps=True,
        marks=tuple(notes),
        codes=("ATT001", "ATT002"),
    )


def _describe_step(step: SearchStep) -> str:
    """Return what the experiment removed, or why it was not tried; "" if it removed nothing."""
    if step.skipped:
        return f"not tried: {step.skipped}"
    if not step.is_cause or step.trial is None:
        return ""
    return f"removes {min(step.removed, 1.0):.0%} {step.trial.description}: {step.trial.cause}"
