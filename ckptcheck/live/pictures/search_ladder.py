"""Draws a search for causes as a ladder: what each experiment removed of the gap."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING

from ckptcheck.linter.pictures import Bar, BarPart, Bars, NoPicture, State

if TYPE_CHECKING:
    from ckptcheck.linter.pictures import Picture, PictureMaker
    from ckptcheck.live.experiments.attribution.search import SearchStep
    from ckptcheck.live.experiments.attribution.trace import Attribution

STATES = (
    State("floor", "good", "what equal weights show too"),
    State("stays", "quiet"),
    State("removed", "change", "the gap that vanishes with this change"),
    State("not tried", "gone"),
)


def list_attribution_pictures(evidence: Attribution) -> Iterable[tuple[str, PictureMaker]]:
    """Return title and maker of the picture."""
    title = "What each experiment removes of the gap"
    return [(title, partial(draw_ladder, evidence, title))]


def draw_ladder(evidence: Attribution, title: str) -> Picture:
    """Draw one bar for each experiment: what stays of the gap with its change, and what it removes."""
    search = evidence.search
    if not search.tokens:
        return NoPicture(title, "no token was compared")
    if search.is_at_floor:
        return NoPicture(title, f"the gap of {search.gap:.3g} nats is at the floor: there is nothing to remove")
    bars = [
        Bar("as recorded", (BarPart(search.gap, "stays"),)),
        *(_describe_step(step) for step in search.steps if step.was_run),
        Bar("with all of them", (BarPart(search.remaining_gap, "stays"),)),
        Bar("floor", (BarPart(search.floor, "floor"),)),
    ]
    return Bars(
        title,
        "From the top down, each experiment scores the tokens again with one change more. What it removes is a cause; the rest "
        "goes on to the next one.",
        tuple(bars),
        STATES,
        "nats",
        codes=("ATT001", "ATT002", "ATT003", "ATT004", "ATT005", "ATT006", "ATT007"),
    )


def _describe_step(step: SearchStep) -> Bar:
    if step.skipped:
        return Bar(step.name, (BarPart(step.before, "not tried", step.skipped),), step.layer)
    if not step.is_cause or step.trial is None:
        tried = f"no gain {step.trial.description}" if step.trial is not None else "no gain"
        return Bar(step.name, (BarPart(step.before, "stays", tried),), step.layer)
    note = f"{min(step.removed, 1.0):.0%} of the gap {step.trial.description}: {step.trial.cause}"
    removed = BarPart(max(step.before - step.after, 0.0), "removed", note)
    return Bar(step.name, (BarPart(step.after, "stays"), removed), step.layer)
