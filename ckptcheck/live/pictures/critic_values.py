"""Draws a critic in two frameworks: its values, token by token, and how far its gradients are apart, weight by weight."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckptcheck.checkpoint.layer_map import draw_layer_map
from ckptcheck.linter.pictures import Curves, HeatCell, HeatMap, Series, State, keep_finite

if TYPE_CHECKING:
    from ckptcheck.live.experiments.critic import CriticComparison

STATES = (
    State("equal", "good", "within what adding up in another order explains"),
    State("no gradient", "notice", "on neither side"),
    State("differs", "bad"),
)
MOST_VALUES = 600
"""Values that are drawn: the first ones."""


def draw_values(critic: CriticComparison, title: str) -> Curves | None:
    """Draw Megatron's values minus transformers' values, for each layout; None without a run."""
    number = min(len(critic.values), MOST_VALUES)
    if not critic.runs or not number:
        return None
    series = tuple(
        Series(
            f"Megatron {run.layout}",
            tuple(
                keep_finite(run.values[at] - critic.values[at]) if at < len(run.values) else None
                for at in range(number)
            ),
        )
        for run in critic.runs
    )
    caption = (
        f"Megatron's values less those of transformers, for each token that counts, in their order. The largest value is"
        f" {critic.scale:.3g}. A gap in a line: the value is missing, or not finite."
    )
    return Curves(
        title, caption, tuple(range(1, number + 1)), series, "token", "difference of values", codes=("HEAD008",)
    )


def draw_gradients(critic: CriticComparison, title: str) -> HeatMap | None:
    """Draw the distance of each weight's gradient from transformers', with a cell for each layout inside."""
    from ckptcheck.live.experiments.critic import GRADIENT_RTOL

    cells: dict[str, dict[str, HeatCell]] = {}
    for run in critic.runs:
        for name, (distance, theirs, ours) in run.gradients.items():
            relative = distance / theirs if theirs else None
            is_equal = distance <= GRADIENT_RTOL * theirs
            state = "no gradient" if not theirs and not ours else "equal" if is_equal else "differs"
            note = f"largest element {theirs:.3g} in transformers, {ours:.3g} in Megatron"
            label = run.layout if len(critic.runs) > 1 else ""
            cells.setdefault(name, {})[label] = HeatCell(relative, state, note, name)
    caption = "Each cell is a weight, by how far its gradient in Megatron is from the one in transformers, of its largest element."
    return draw_layer_map(title, caption, cells, STATES, value_label="relative distance", member_label="layout")
