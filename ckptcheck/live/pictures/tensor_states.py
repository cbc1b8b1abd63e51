"""Draws the states of the engine's tensors over the syncs of a trial: layer × module, a cell for each rank inside."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ckptcheck.checkpoint.layer_map import draw_layer_map
from ckptcheck.linter.pictures import HeatCell, HeatMap, NoPicture, State
from ckptcheck.live.refit.trace_queries import stale_parameters, why_not_scrambled
from ckptcheck.text.formatting import count, natural_sort_key

if TYPE_CHECKING:
    from ckptcheck.live.refit.observations import Key, Observations, Sync

STATES = (
    State("written", "good", "marks show that a sync wrote it, and it equals a cold load bit for bit"),
    State("equal", "quiet", "it equals a cold load bit for bit; no mark shows whether a sync wrote it"),
    State("not seen", "gone", "its numbers can be read on neither side"),
    State("differs", "notice", "no parameter, and other than in a cold load; the findings say where that matters"),
    State("extra", "change", "a cold load does not have it"),
    State("stale", "warn", "it holds what it held before the last step"),
    State("lost", "bad", "a cold load has it, and here it is missing or cannot be read"),
    State("wrong", "bad", "a parameter that is other than in a cold load"),
    State("not written", "bad", "marks from before the sync are still in it"),
)
GRAVITY = {state.name: place for place, state in enumerate(STATES)}


def draw_tensor_states(trace: Observations, title: str) -> HeatMap | NoPicture | None:
    """Draw the gravest state of each tensor over all syncs that were compared with a cold load."""
    compared = [sync for sync in trace.syncs if sync.manifest]
    if not compared:
        return NoPicture(title, "no sync was compared with a cold load of the same weights")
    history: dict[Key, list[tuple[Sync, str]]] = {}
    for sync in compared:
        for key, state in _judge_tensors(trace, sync).items():
            history.setdefault(key, []).append((sync, state))
    by_name: dict[str, dict[int, HeatCell]] = {}
    for key, states in history.items():
        by_name.setdefault(key[1], {})[key[0]] = _make_cell(key, states)
    return _make_map(title, by_name, compared)


def _judge_tensors(trace: Observations, sync: Sync) -> dict[Key, str]:
    """Return the state of each tensor of the engine, or of the cold load, after one sync."""
    stale = stale_parameters(trace, sync)
    marked = trace.scrambled.names if sync.was_marked and not why_not_scrambled(trace) else frozenset()
    states: dict[Key, str] = {}
    for key in {**sync.reference, **sync.manifest}:
        if key in sync.missing_tensors or key in sync.unreadable_tensors:
            states[key] = "lost"
        elif key in sync.unwritten_parts:
            states[key] = "not written"
        elif key in stale:
            states[key] = "stale"
        elif key in sync.differing_tensors:
            states[key] = "wrong" if sync.manifest[key].kind == "parameter" else "differs"
        elif key in sync.extra_tensors:
            states[key] = "extra"
        elif sync.manifest[key].opaque or sync.reference[key].opaque:
            states[key] = "not seen"
        else:
            states[key] = "written" if key in marked else "equal"
    return states


def _make_cell(key: Key, states: list[tuple[Sync, str]]) -> HeatCell:
    seen = {state for _, state in states}
    # one marked sync proves that updates write the tensor; after the others it is merely equal
    worst = "written" if seen == {"written", "equal"} else max(seen, key=GRAVITY.__getitem__)
    notes = []
    if len(seen) > 1 and worst != "written":
        notes.append("; ".join(f"sync {sync.number}: {state}" for sync, state in states))
    for sync, _ in states:
        if (part := sync.unwritten_parts.get(key)) is not None:
            left = part.sentinel_count + part.nan_count
            notes.append(f"sync {sync.number} left {left:,} of {part.total:,} elements unwritten")
        entry = sync.manifest.get(key)
        if entry is not None and entry.opaque and (reason := f"cannot be read: {entry.opaque}") not in notes:
            notes.append(reason)
    return HeatCell(state=worst, note="; ".join(notes), name=key[1])


def _make_map(title: str, by_name: Mapping[str, Mapping[int, HeatCell]], syncs: list[Sync]) -> HeatMap | None:
    ranks = {rank for cells in by_name.values() for rank in cells}
    names = sorted(by_name, key=natural_sort_key)
    which = "after the sync" if len(syncs) == 1 else f"after {count(len(syncs), 'sync')}, the gravest state of all"
    inside = f" on {count(len(ranks), 'rank')}: a click opens them" if len(ranks) > 1 else ""
    return draw_layer_map(
        title,
        f"Each cell is a tensor of the engine{inside}, beside a cold load of the same weights, {which}.",
        {
            name: {str(rank): cell for rank, cell in by_name[name].items()}
            if len(ranks) > 1
            else next(iter(by_name[name].values()))
            for name in names
        },
        STATES,
        member_label="expert" if len(ranks) == 1 else "rank",
    )
