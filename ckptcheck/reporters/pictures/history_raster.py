"""Draws which tensors changed at which sync of a record, tensors × syncs, once for each side; and the parity after each sync."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Literal

from ckptcheck.consumers.engine_tensors import find_source_tensors
from ckptcheck.linter.pictures import Curves, HeatCell, HeatMap, Series, State, choose_scale
from ckptcheck.runs.history.history import name_pattern
from ckptcheck.runs.history.record import NO_BYTES
from ckptcheck.text.formatting import count, natural_sort_key

if TYPE_CHECKING:
    from ckptcheck.runs.history.history import History, SyncPair

STATES = (
    State("not compared", "quiet", "nothing before it can be compared with it, or the sync failed"),
    State("not seen", "gone", "the engine could not be asked for its numbers"),
    State("unchanged", "notice", "as at the sync before"),
    State("changed", "good"),
    State("stale", "bad", "it is as before, although what it is built from was sent with new numbers"),
)
GRAVITY = {state.name: place for place, state in enumerate(STATES)}
MOST_SYNCS = 400
"""Columns; of a longer record the last syncs are drawn."""
MOST_ROWS = 150
"""With more tensors, tensors whose names differ only in numbers share a row."""
MOST_CELLS = 40_000
"""With more cells, a shared row says how many of its tensors changed, and not which."""
Side = Literal["sent", "held"]


def draw_sent(history: History, title: str) -> HeatMap | None:
    """Draw the tensors that the trainer sent."""
    return draw_raster(history, "sent", title)


def draw_held(history: History, title: str) -> HeatMap | None:
    """Draw the tensors that the engine held after each sync."""
    return draw_raster(history, "held", title)


def draw_raster(history: History, side: Side, title: str) -> HeatMap | None:
    """Draw one side; None if the record has nothing of it."""
    first = max(len(history.syncs) - MOST_SYNCS, 0)
    states = {index: _judge_sync(history, side, index) for index in range(first, len(history.syncs))}
    stale = {pair.index: _name_stale(history, pair, side) for pair in history.pairs if pair.index in states}
    ever_stale = frozenset[str]().union(*stale.values())
    names = sorted({name for column in states.values() for name in column}, key=natural_sort_key)
    if not names:
        return None
    groups: dict[str, list[str]] = {}
    for name in names:
        row = name_pattern(name).replace("{}", "*") if len(names) > MOST_ROWS else name
        groups.setdefault(row, []).append(name)
    has_members = len(names) * len(states) <= MOST_CELLS
    cells: dict[tuple[int, int], HeatCell] = {}
    for place, members in enumerate(groups.values()):
        for column, (index, known) in enumerate(states.items()):
            found = {name: known[name] for name in members if name in known}
            if found:
                named = stale.get(index, frozenset())
                if index == len(history.syncs) - 1:
                    named |= found.keys() - ever_stale
                cells[place, column] = _make_cell(members, found, named, has_members=has_members)
    what = "The trainer sent these tensors" if side == "sent" else "The engine held these tensors afterwards"
    caption = f"{what}. Each column is a sync, each row a tensor{' or several of one kind' if len(groups) < len(names) else ''}."
    if first:
        caption += f" The first {count(first, 'sync')} of the record are not drawn."
    columns = tuple(label_syncs(history))[first:]
    return HeatMap(
        title,
        caption,
        tuple(groups),
        columns,
        cells,
        STATES,
        codes=("HIS002",) if side == "sent" else (),
        row_label="tensor",
        column_label="sync",
        member_label="tensor",
    )


def draw_probes(history: History, title: str) -> Curves | None:
    """Draw how far both sides' logprobs were apart after each sync; None without a probe."""
    probes = [sync.probe for sync in history.syncs]
    lines = {"mean |Δ|": "mean", "largest |Δ|": "most", "floor of the mean": "floor"}
    series = [
        Series(name, tuple(None if probe is None else getattr(probe, field) for probe in probes))
        for name, field in lines.items()
    ]
    drawn = tuple(each for each in series if any(value is not None for value in each.values))
    if not drawn:
        return None
    caption = "Engine and trainer on fixed sequences. The floor is the mean of equal weights on both sides, where it was measured."
    scale = choose_scale(value for each in drawn for value in each.values)
    return Curves(title, caption, label_syncs(history), drawn, "sync", "nats", scale, codes=("HIS016",))


def label_syncs(history: History) -> tuple[str, ...]:
    """Return the labels of the syncs: their steps, if each has one of its own, else their places."""
    steps = [sync.step for sync in history.syncs]
    if None not in steps and len(set(steps)) == len(steps):
        return tuple(f"step {step}" for step in steps)
    return tuple(str(number) for number in range(1, len(steps) + 1))


def _name_stale(history: History, pair: SyncPair, side: Side) -> frozenset[str]:
    """Return the tensors of one side that are stale at a sync: the engine's, or the sent ones that they come from."""
    stale = history.stale_tensors(pair)
    if side == "held":
        return frozenset(stale)
    names = pair.after.sent.keys()
    return pair.sent_changed.intersection(
        source for key in stale for source in find_source_tensors(key.partition("/")[2], names)
    )


def _judge_sync(history: History, side: Side, index: int) -> dict[str, str]:
    """Return the state of each tensor that a sync digested, or tried to."""
    sync = history.syncs[index]
    digests = sync.sent if side == "sent" else sync.held
    states = dict.fromkeys(digests, "not compared")
    pair = next((pair for pair in history.pairs if pair.index == index), None)
    if pair is not None:
        before = pair.before.sent if side == "sent" else pair.before.held
        states |= {
            name: "unchanged" if before[name] == value else "changed"
            for name, value in digests.items()
            if name in before
        }
        if side == "held":
            states |= dict.fromkeys(history.stale_tensors(pair), "stale")
    if side == "held":
        states |= {name: "not seen" for name, value in digests.items() if value in NO_BYTES}
        states |= dict.fromkeys(sync.unseen, "not seen")
    return states


def _make_cell(members: list[str], found: Mapping[str, str], named: Collection[str], *, has_members: bool) -> HeatCell:
    """Return the cell of one tensor, or of several that share a row. named: the tensors that findings link to."""
    cells = {name: _make_tensor_cell(name, state, is_named=name in named) for name, state in found.items()}
    if len(members) == 1:
        return cells[members[0]]
    numbers = Counter(found.values())
    note = ", ".join(f"{number:,} {state}" for state, number in sorted(numbers.items()))
    if not has_members:
        return HeatCell(state=max(numbers, key=GRAVITY.__getitem__), note=note)
    labels = {_join_numbers(name): cell for name, cell in cells.items()}
    return HeatCell(note=note, members=labels if len(labels) == len(cells) else cells)


def _make_tensor_cell(name: str, state: str, *, is_named: bool) -> HeatCell:
    """Return the cell of one tensor. Findings name a tensor of the engine without its rank."""
    rank, _, own = name.rpartition("/")
    return HeatCell(state=state, name=(own if rank.isdecimal() else name) if is_named else "")


def _join_numbers(name: str) -> str:
    """Return the numbers of a name, which distinguish it from the others of its row."""
    return ".".join(part for part in name.replace("/", ".").split(".") if part.isdecimal())
