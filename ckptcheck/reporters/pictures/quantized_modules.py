"""Draws which modules are stored quantized, and how each consumer builds them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ckptcheck.checkpoint.layer_grid import build_layer_grid
from ckptcheck.checkpoint.layer_map import draw_layer_map
from ckptcheck.consumers.mismatches import evaluate_checkpoint, map_stored_modules, to_first_expert
from ckptcheck.linter.pictures import HeatCell, HeatMap, NoPicture, State

if TYPE_CHECKING:
    from ckptcheck.checkpoint.checkpoint import Checkpoint
    from ckptcheck.checkpoint.layer_grid import GridPlace, LayerGrid
    from ckptcheck.consumers.base import Decision
    from ckptcheck.consumers.evaluation import Evaluation

STATES = (
    State("plain", "quiet", "stored or built as numbers"),
    State("quantized", "good", "stored or built quantized"),
    State("not known", "notice", "ckptcheck cannot tell"),
    State("unlike", "warn", "built in another form than stored"),
    State("refused", "bad", "the consumer stops at it"),
)
STORED = "stored"


def draw_quantized_modules(ckpt: Checkpoint, title: str) -> HeatMap | NoPicture | None:
    """Return rows for the stored form and for each consumer, by kind of module; None if nothing is quantized."""
    evaluations = evaluate_checkpoint(ckpt)
    if not evaluations:
        return None
    modules = map_stored_modules(ckpt)
    grid = build_layer_grid(modules)
    stored = {is_quantized: HeatCell(state=_name_state(is_quantized)) for is_quantized in (False, True)}
    drawn = [draw_layer_map(title, "", {module: stored[modules[module]] for module in modules}, STATES, grid=grid)]
    drawn += [_draw_decisions(title, grid, modules, evaluation) for evaluation in evaluations.values()]
    cells = {
        (row * len(drawn) + side, column): cell
        for side, layers in enumerate(drawn)
        for (row, column), cell in (layers.cells.items() if layers is not None else ())
    }
    refusals = [
        f"{name} refuses the checkpoint: {evaluation.error}"
        for name, evaluation in evaluations.items()
        if evaluation.error
    ]
    caption = " ".join(
        [
            "For each kind of module the first row is what the files hold, and the others are what each consumer builds.",
            *refusals,
        ]
    )
    sides = (STORED, *(f"{name} {evaluation.consumer.version}" for name, evaluation in evaluations.items()))
    rows = tuple(f"{row} · {side}" for row in grid.rows for side in sides)
    return HeatMap(title, caption, rows, grid.columns, cells, STATES)


def _draw_decisions(title: str, grid: LayerGrid, modules: Mapping[str, bool], evaluation: Evaluation) -> HeatMap | None:
    """Return what a consumer builds. The first expert stands for those that `evaluate_checkpoint` left out."""
    unknown = HeatCell(state="not known", note=evaluation.reason or "")
    if evaluation.error is not None:
        unknown = HeatCell(state="refused", note=evaluation.error)
    decided = {
        module: _draw_decision(decision, modules[module]) for module, (_, decision) in evaluation.decisions.items()
    }

    def fill(place: GridPlace) -> HeatCell:
        first = to_first_expert(place.names[0])
        return decided.get(first, unknown) if first == "0".join(place.around) else unknown

    return draw_layer_map(title, "", decided, STATES, grid=grid, fill=fill)


def _draw_decision(decision: Decision, is_quantized: bool) -> HeatCell:
    if decision.quantized is None:
        return HeatCell(
            state="refused" if decision.error else "not known", note=decision.error or decision.reason or ""
        )
    if decision.quantized != is_quantized:
        return HeatCell(state="unlike", note=f"built {_name_state(decision.quantized)}")
    return HeatCell(state=_name_state(decision.quantized))


def _name_state(is_quantized: bool) -> str:
    return "quantized" if is_quantized else "plain"
