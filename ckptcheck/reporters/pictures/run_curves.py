"""Draws the metrics of a training run over its steps, alone or beside those of a reference."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING

from ckptcheck.linter.pictures import Curves, Mark, Series

if TYPE_CHECKING:
    from ckptcheck.linter.pictures import PictureMaker
    from ckptcheck.rollouts.curves import Curve, CurveComparison
    from ckptcheck.rollouts.run_comparison import RunComparison
    from ckptcheck.rollouts.series import RolloutSeries


def list_series_pictures(series: RolloutSeries) -> Iterable[tuple[str, PictureMaker]]:
    """Return title and maker of a picture for each curve of at least two steps."""
    for curve, values in series.compute_curves().items():
        if len(values) > 1:
            title = f"{curve.name} over the steps"
            yield title, partial(_draw_curve, title, curve, values)


def list_comparison_pictures(comparison: RunComparison) -> Iterable[tuple[str, PictureMaker]]:
    """Return title and maker of a picture for each curve that both runs have."""
    for each in comparison.comparisons:
        title = f"{each.curve.name}: the run and its reference"
        yield title, partial(_draw_comparison, title, each)


def _draw_curve(title: str, curve: Curve, values: dict[int, float]) -> Curves:
    return Curves(
        title,
        "One point for each step whose tokens the engine drew.",
        tuple(values),
        (Series(curve.name, tuple(values.values())),),
        "step",
        curve.name,
    )


def _draw_comparison(title: str, each: CurveComparison) -> Curves:
    marks: tuple[Mark, ...] = ()
    caption = "The run follows its reference."
    if each.parting is not None:
        marks = (Mark("run", each.steps.index(each.parting), f"parts at step {each.parting}"),)
        caption = f"From step {each.parting} on the run differs from its reference, by {each.multiple_label}."
    series = (Series("run", each.run), Series("reference", each.reference))
    return Curves(title, caption, each.steps, series, "step", each.curve.name, marks=marks)
