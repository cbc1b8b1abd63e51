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
    from ckptcheck.checkpoint.layer_grid import LayerGrid
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
    sides = {STORED: {module: stored[is_quantized] for module, is_quantized in modules.items()}}
    for name, evaluation in evaluations.items():
        sides[f"{name} {evaluation.consumer.version}"] = _draw_decisions(grid, modules, evaluation)
    cells: dict[tuple[int, int], HeatCell] = {}
    for side, drawn in enumerate(sides.values()):
        layers = draw_layer_map(title, "", drawn, STATES, grid=grid)
        for (row, column), cell in layers.cells.items() if layers is not None else ():
            cells[row * len(sides) + side, column] = cell
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
    rows = tuple(f"{row} · {side}" for row in grid.rows for side in sides)
    return HeatMap(title, caption, rows, grid.columns, cells, STATES)


def _draw_decisions(grid: LayerGrid, modules: Mapping[str, bool], evaluation: Evaluation) -> dict[str, HeatCell]:
    """Return module → its cell, without its name. The first expert stands for those that `evaluate_checkpoint` left out."""
    if evaluation.error is not None:
        return dict.fromkeys(modules, HeatCell(state="refused", note=evaluation.error))
    unknown = HeatCell(state="not known", note=evaluation.reason or "")
    decided = {
        module: _draw_decision(decision, modules[module]) for module, (_, decision) in evaluation.decisions.items()
    }
    drawn: dict[str, HeatCell] = {}
    for place in grid.places:
        first = to_first_expert(place.names[0])
        stands_for_all = "0".join(place.around) == first
        drawn |= dict.fromkeys(place.names, decided.get(first, unknown) if stands_for_all else unknown)
    return drawn | decided


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
