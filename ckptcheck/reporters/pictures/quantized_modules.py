"""Draws which modules are stored quantized, and how each consumer builds them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ckptcheck.checkpoint.layer_grid import build_layer_grid
from ckptcheck.consumers.mismatches import evaluate_checkpoint, map_stored_modules
from ckptcheck.linter.pictures import HeatCell, HeatMap, NoPicture, State

if TYPE_CHECKING:
    from ckptcheck.checkpoint.checkpoint import Checkpoint
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
    sides = [STORED, *(f"{name} {evaluation.consumer.version}" for name, evaluation in evaluations.items())]
    cells: dict[tuple[int, int], HeatCell] = {}
    members: dict[tuple[int, int], dict[str, HeatCell]] = {}
    for module, place in grid.places.items():
        drawn = [HeatCell(state=_name_state(modules[module]), name=module)]
        drawn += [_draw_decision(modules, module, evaluation) for evaluation in evaluations.values()]
        for side, cell in enumerate(drawn):
            where = (place.row * len(sides) + side, place.column)
            if place.member:
                members.setdefault(where, {})[place.member] = cell
            else:
                cells[where] = cell
    cells |= {where: HeatCell(members=inner) for where, inner in members.items()}
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


def _draw_decision(modules: Mapping[str, bool], module: str, evaluation: Evaluation) -> HeatCell:
    found = evaluation.decisions.get(module)
    if evaluation.error is not None:
        return HeatCell(state="refused", note=evaluation.error, name=module)
    if found is None:
        return HeatCell(state="not known", note=evaluation.reason or "", name=module)
    decision: Decision = found[1]
    if decision.quantized is None:
        state = "refused" if decision.error else "not known"
        return HeatCell(state=state, note=decision.error or decision.reason or "", name=module)
    if decision.quantized != modules[module]:
        return HeatCell(state="unlike", note=f"built {_name_state(decision.quantized)}", name=module)
    return HeatCell(state=_name_state(decision.quantized), name=module)


def _name_state(is_quantized: bool) -> str:
    return "quantized" if is_quantized else "plain"
