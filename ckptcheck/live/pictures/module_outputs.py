"""Draws how far the outputs of modules are apart on two sides: module by layer, and along the forward pass."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckptcheck.checkpoint.layer_map import draw_layer_map
from ckptcheck.linter.pictures import Curves, HeatCell, HeatMap, Mark, Series, State, keep_finite

if TYPE_CHECKING:
    from ckptcheck.compare.activations.points import Point
    from ckptcheck.live.localize.localization import Localization

STATES = (
    State("equal", "good", "within what rounding explains"),
    State("not compared", "gone", "only one side has it, or with another shape"),
    State("differs", "warn", "beyond the limit, after the module at which the sides part"),
    State("parts here", "bad", "the first module beyond the limit"),
    State("not finite", "bad", "NaN or Inf"),
)


def draw_modules(evidence: Localization, title: str) -> HeatMap | None:
    """Draw the relative difference of every output, with a cell for each pair of ranks inside."""
    cells: dict[str, dict[str, HeatCell]] = {}
    for part in evidence.replicas:
        for point in part.points:
            cells.setdefault(point.name, {})[part.ranks if evidence.further else ""] = _draw_point(part, point)
        for side, names in part.unmatched.items():
            for name in names:
                cell = HeatCell(state="not compared", note=f"only {side} has it, or the shapes differ", name=name)
                cells.setdefault(name, {}).setdefault(part.ranks if evidence.further else "", cell)
    caption = (
        f"Each cell is the output of a module: the norm of {evidence.sides[1]} − {evidence.sides[0]}, divided by the norm of"
        f" {evidence.sides[0]}. The limit is {evidence.limit:.2g}."
    )
    return draw_layer_map(
        title, caption, cells, STATES, value_label="relative difference", member_label="pair of ranks"
    )


def _draw_point(part: Localization, point: Point) -> HeatCell:
    if point.non_finite_sides:
        return HeatCell(state="not finite", note=f"on {' and '.join(point.non_finite_sides)}", name=point.name)
    is_first = part.first_diverging is not None and point.name == part.first_diverging.name
    state = "parts here" if is_first else "differs" if point.relative > part.limit else "equal"
    first = f", from token {point.first_token} of {point.tokens} on" if point.first_token is not None else ""
    return HeatCell(point.relative, state, f"cosine {point.cosine:.6f}, largest {point.largest:.3g}{first}", point.name)


def draw_course(evidence: Localization, title: str) -> Curves | None:
    """Draw the relative difference from the embedding to the logits; None for fewer than two points."""
    names = list(dict.fromkeys(point.name for part in evidence.replicas for point in part.points))
    if len(names) < 2:
        return None
    series, marks = [], []
    for part in evidence.replicas:
        found = {point.name: point for point in part.points}
        label = part.ranks or "relative difference"
        values = tuple(keep_finite(found[name].relative) if name in found else None for name in names)
        series.append(Series(label, values, keys=tuple(names)))
        if part.first_diverging is not None:
            marks.append(Mark(label, names.index(part.first_diverging.name), part.first_diverging.name))
    series.append(Series("limit", (evidence.limit,) * len(names)))
    caption = "The outputs in the order of execution. Rounding grows slowly; where the sides part, the line jumps."
    return Curves(
        title, caption, tuple(names), tuple(series), "module", "relative difference", "log", marks=tuple(marks)
    )
