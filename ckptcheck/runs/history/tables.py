"""The tables of a history: one row for each sync, and the tensors that changed at each."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from ckptcheck.linter.report import Cell, Section
from ckptcheck.text.formatting import count, format_ranges, join_truncated

if TYPE_CHECKING:
    from ckptcheck.runs.history.history import History

COLUMNS = (
    "sync",
    "step",
    "version",
    "loss",
    "sent",
    "changed",
    "engine holds",
    "changed there",
    "MB",
    "sync s",
    "check s",
    "time",
)


def history_sections(history: History) -> tuple[Section, ...]:
    """Return the table of the syncs, with the tensors that never changed below it, and the table of the changed tensors."""
    pairs = {pair.index: pair for pair in history.pairs}
    has_probes = any(sync.probe is not None for sync in history.syncs)
    has_gaps = any(sync.gap is not None for sync in history.syncs)
    further = (*(("probe mean |Δ|",) if has_probes else ()), *(("gap logged",) if has_gaps else ()))
    rows: list[tuple[Cell, ...]] = []
    for index, sync in enumerate(history.syncs):
        pair = pairs.get(index)
        rows.append(
            (
                index + 1,
                sync.step,
                sync.version,
                sync.loss,
                len(sync.sent) or None,
                len(pair.sent_changed) if pair and sync.sent else None,
                len(sync.held) or None,
                len(pair.held_changed) if pair and sync.held else None,
                sync.nbytes / 1e6 if sync.nbytes else None,
                sync.seconds or None,
                sync.checked or None,
                sync.time or None,
                *((sync.probe.mean if sync.probe is not None else None,) if has_probes else ()),
                *((sync.gap.value if sync.gap is not None else None,) if has_gaps else ()),
            )
        )
    constant_names = history.constant_names if history.step_pairs else ()
    total = len(history.compared_names)
    lines: tuple[str, ...] = (
        (f"never changed: {len(constant_names):,} of {total:,} that were sent: {join_truncated(constant_names)}",)
        if constant_names
        else ()
    )
    if history.unseen:
        lines += (f"unseen in the engine: {len(history.unseen):,} tensors: {join_truncated(history.unseen)}",)
    return (
        Section("weight syncs", (*COLUMNS, *further), tuple(rows), lines),
        *_change_sections(history),
        *_identity_sections(history),
        *_response_sections(history),
    )


def _identity_sections(history: History) -> tuple[Section, ...]:
    """Return the table of the sets of weights that were sent, by their identities; none if no sync has an identity."""
    rows = [
        (index + 1, sync.step, sync.version, sync.identity, sync.held_identity)
        for index, sync in enumerate(history.syncs)
        if sync.identity is not None
    ]
    if not rows:
        return ()
    sets, other = len({row[3] for row in rows}), [row[0] for row in rows if row[4] not in (None, row[3])]
    brief = f"{count(len(rows), 'sync')} sent {count(sets, 'set')} of weights, by their content"
    if other:
        brief += f"; after sync {format_ranges(other)} the engine held another set than was sent"
    lines = [brief]
    if history.saved is not None:
        equal = [history.label(row[0] - 1) for row in rows if row[3] == history.saved.identity]
        if equal:
            lines.append(f"{history.saved.target} holds the set that was sent at {join_truncated(equal)}")
    columns = ("sync", "step", "version", "identity sent", "identity held")
    return (Section("identity of the weights", columns, tuple(rows), brief=tuple(lines)),)


def _response_sections(history: History) -> tuple[Section, ...]:
    """Return the weight versions of the responses with the set of weights that each stands for; none without responses."""
    if history.responses is None:
        return ()
    names = {sync.version: sync.identity for sync in history.syncs if sync.ok and sync.version is not None}
    rows = tuple((version, number, names.get(version)) for version, number in history.responses.responses.items())
    return (Section("weight versions of the responses", ("version", "responses", "identity sent"), rows),)


def _change_sections(history: History) -> tuple[Section, ...]:
    """Return the table of the tensors that changed at each sync, one row each, with a summary of a line for each sync."""
    rows: list[tuple[Cell, ...]] = []
    summaries: list[tuple[list[int], str]] = []
    for pair in history.pairs:
        parts = []
        for side, description, changed, before, after in (
            ("sent", "that were sent", pair.sent_changed, pair.before.sent, pair.after.sent),
            ("engine", "in the engine", pair.held_changed, pair.before.held, pair.after.held),
        ):
            rows += [(pair.index + 1, side, name) for name in after if name in changed]
            if before and after:
                parts.append(_summarize_changes(description, changed, [name for name in after if name in before]))
        if parts and summaries and summaries[-1][1] == "; ".join(parts):
            summaries[-1][0].append(pair.index + 1)
        elif parts:
            summaries.append(([pair.index + 1], "; ".join(parts)))
    if not summaries:
        return ()
    brief = tuple(f"sync {format_ranges(numbers)}: {summary}" for numbers, summary in summaries)
    return (Section("changed since the sync before", ("sync", "side", "tensor"), tuple(rows), brief=brief),)


def _summarize_changes(description: str, changed: Collection[str], names: Collection[str]) -> str:
    """Describe how many tensors changed, and name them, or those that did not change if these are fewer.

    description: ends the count, as in "3 of 5 that were sent". names: the tensors that both syncs have.
    """
    unchanged = [name for name in names if name not in changed]
    if not unchanged or not changed:
        return f"{'none of' if unchanged else 'all'} {len(names):,} {description}"
    examples = f"not {join_truncated(unchanged)}" if len(unchanged) < len(changed) else join_truncated(changed)
    return f"{len(changed):,} of {len(names):,} {description}, {examples}"
