"""Draws an engine's use of a LoRA adapter: its slot, tensor by tensor, and the logprobs of requests with it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckptcheck.checkpoint.layer_map import draw_layer_map
from ckptcheck.linter.pictures import Curves, HeatCell, HeatMap, State
from ckptcheck.live.pictures.token_lines import draw_token_lines, subtract_logprobs
from ckptcheck.text.formatting import natural_sort_key

if TYPE_CHECKING:
    from ckptcheck.live.refit.lora.trace import LoraTrace

STATES = (
    State("right", "good", "as its first load wrote it, and as a cold load of the next adapter writes that"),
    State("loaded", "quiet", "nothing was held to it yet"),
    State("stale", "warn", "after the replacement it holds what the first load wrote"),
    State("lost in the eviction", "bad", "after other adapters took the slot it holds something else"),
    State("wrong", "bad", "after the replacement it holds what a cold load does not write"),
)
GRAVITY = {state.name: place for place, state in enumerate(STATES)}


def draw_slots(trace: LoraTrace, title: str) -> HeatMap | None:
    """Draw the gravest state of each tensor that holds the adapter, rank by rank; None if it was not loaded."""
    if trace.loaded is None:
        return None
    ranks = {rank for rank, _ in trace.loaded.slots}
    cells: dict[str, dict[str, HeatCell]] = {}
    for rank, name in trace.loaded.slots:
        cell = HeatCell(state=_judge_slot(trace, (rank, name)), name=name)
        cells.setdefault(name, {})[str(rank) if len(ranks) > 1 else ""] = cell
    given = {name: cells[name] for name in sorted(cells, key=natural_sort_key)}
    caption = (
        "Each cell is a tensor of the engine that holds the adapter: after its load, after others took its slot, and after another"
        " adapter came under its name."
    )
    return draw_layer_map(title, caption, given, STATES, member_label="rank")


def _judge_slot(trace: LoraTrace, key: tuple[int, str]) -> str:
    first, evicted, updated, cold = (
        None if served is None else (served.slots[key].digest if key in served.slots else "")
        for served in (trace.loaded, trace.evicted, trace.updated, trace.updated_cold)
    )
    states = []
    if evicted is not None:
        states.append("right" if evicted == first else "lost in the eviction")
    if updated is not None and cold is not None:
        states.append("right" if updated == cold else "stale" if updated == first else "wrong")
    return max(states or ["loaded"], key=GRAVITY.__getitem__)


def draw_effects(trace: LoraTrace, title: str) -> Curves | None:
    """Draw the logprobs of requests with the adapter, minus the same without it; None if it was not loaded."""
    served = {
        "with the adapter": trace.loaded and trace.loaded.scores,
        "merged into the checkpoint": trace.merged,
        "after an eviction": trace.evicted and trace.evicted.scores,
        "another one under its name": trace.updated and trace.updated.scores,
        "that one, loaded cold": trace.updated_cold and trace.updated_cold.scores,
        "without it, at the end": trace.base_after,
    }
    base = [each.prompt_logprobs for each in trace.base]
    lines = {
        name: subtract_logprobs((each.prompt_logprobs for each in scores), base)
        for name, scores in served.items()
        if scores
    }
    caption = (
        "Logprobs less those of the base model, for each token of the scored sequences, in their order. The first three"
        " lines should lie on each other, the next two as well, and the last one at 0. A name below the picture hides its line."
    )
    return draw_token_lines(title, caption, lines, ("REF050",))
