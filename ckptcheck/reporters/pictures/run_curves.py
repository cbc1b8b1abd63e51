"""Draws the metrics of a training run over its steps, alone or beside those of a reference."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckptcheck.jobs.printed_log import PrintedLog
from ckptcheck.linter.pictures import Curves, Mark, Series

if TYPE_CHECKING:
    from ckptcheck.rollouts.curves import Curve, CurveComparison
    from ckptcheck.rollouts.run_comparison import RunComparison
    from ckptcheck.rollouts.series import RolloutSeries
    from ckptcheck.runs.history.history import History


def draw_series(series: RolloutSeries, title: str) -> list[Curves]:
    """Draw each curve of at least two steps."""
    return [
        _draw_curve(f"{curve.name} over the steps", curve, values)
        for curve, values in series.compute_curves().items()
        if len(values) > 1
    ]


def draw_log(history: History, title: str) -> list[Curves]:
    """Draw each curve of at least two steps of a job's log; nothing of a record of syncs."""
    curves = history.curves if isinstance(history, PrintedLog) else {}
    return [
        _draw_curve(
            f"{curve.name} over the steps", curve, dict(values), "One point for each step that the job printed."
        )
        for curve, values in curves.items()
        if len(values) > 1
    ]


def draw_comparison(comparison: RunComparison, title: str) -> list[Curves]:
    """Draw each curve that both runs have."""
    return [_draw_comparison(f"{each.curve.name}: the run and its reference", each) for each in comparison.comparisons]


def _draw_curve(
    title: str,
    curve: Curve,
    values: dict[int, float],
    caption: str = "One point for each step whose tokens the engine drew.",
) -> Curves:
    return Curves(
        title,
        caption,
        tuple(values),
        (Series(curve.name, tuple(values.values())),),
        "step",
        curve.name,
    )


def _draw_comparison(title: str, each: CurveComparison) -> Curves:
    marks: tuple[Mark, ...] = ()
    caption = "The run follows its reference."
    if each.parting is not None:
        marks = (Mark("run", each.steps.index(each.parting), f"diverges at step {each.parting}"),)
        caption = f"From step {each.parting} on the run differs from its reference, by {each.multiple_label}."
    series = (Series("run", each.run), Series("reference", each.reference))
    return Curves(title, caption, each.steps, series, "step", each.curve.name, marks=marks)
