"""Joins the records that the sides of a job kept apart: senders, which saw no engine, engines, which watched themselves, and a
driver, which saw what the job logs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

import msgspec

from ckptcheck.runs.history.logged_gap import LOGGED, find_logged
from ckptcheck.runs.history.record import GapRecord, SyncRecord

Syncs = Sequence[SyncRecord]
SAME = 0.5
"""Share of the tensors that both records have and that are equal, from which on they are of one sync."""


def join_records(records: Sequence[Syncs]) -> tuple[list[SyncRecord], dict[int, list[Mapping[str, str]]]]:
    """Return the syncs of a job with both sides, and for each what arrived at every engine that recorded it: name → digest.

    The records without anything of an engine are those of the senders: of one, or of several ranks that send a part each. Where all
    have an engine, the first is the sender's. The engines are numbered in the order of their records: ``rank/name`` becomes
    ``1.rank/name`` for the second one.

    records: the syncs of each file, in the order in which they were recorded.
    """
    senders = [syncs for syncs in records if not any(sync.held or sync.unseen for sync in syncs)] or [records[0]]
    engines = [syncs for syncs in records if not any(syncs is each for each in senders)]
    joined = _join_ranks(senders)
    arrived: dict[int, list[Mapping[str, str]]] = {}
    for number, syncs in enumerate(engines):
        prefix = f"{number}." if number else ""
        found = dict(_match(joined, syncs))
        for place, sync in found.items():
            joined[place] = _add_engine(joined[place], sync, prefix)
            arrived.setdefault(place, []).append(sync.sent)
        # the tensors of an engine that missed a sync have not vanished
        keys = sorted({f"{prefix}{key}" for sync in syncs for key in sync.held})
        for place in set(range(min(found, default=0), len(joined))) - found.keys():
            joined[place] = msgspec.structs.replace(joined[place], unseen=[*joined[place].unseen, *keys])
    return joined, arrived


def place_gaps(gaps: Sequence[tuple[str, GapRecord]], syncs: Syncs) -> tuple[tuple[str, GapRecord], ...]:
    """Return what a driver logged, by the processes that sync and by their count of steps.

    gaps: the driver's process, and what it logged; syncs: of the senders, in their order. A job that goes on has a driver and a
    sender more.
    """
    senders, drivers = list(dict.fromkeys(sync.run for sync in syncs)), list(dict.fromkeys(run for run, _ in gaps))
    placed = []
    for run, gap in gaps:
        step = None if gap.step is None else gap.step - LOGGED[find_logged(gap.name)].ahead
        sender = senders[min(drivers.index(run), len(senders) - 1)]
        placed.append((sender, msgspec.structs.replace(gap, step=step)))
    return tuple(placed)


def _join_ranks(senders: Sequence[Syncs]) -> list[SyncRecord]:
    """Return the syncs of the first rank, with what the others sent at the same step, or as the same sync of their record."""
    first, *others = senders
    joined = list(map(msgspec.structs.replace, first))
    for syncs in others:
        steps = {sync.step: sync for sync in syncs if sync.step is not None and sync.ok}
        for place, sync in enumerate(joined):
            other = steps.get(sync.step) if sync.step is not None else syncs[place] if place < len(syncs) else None
            if other is not None:
                sent, cast = {**other.sent, **sync.sent}, {**other.cast, **sync.cast}
                both = {"sent": sent, "cast": cast, "nbytes": sync.nbytes + other.nbytes, "partial": ""}
                joined[place] = msgspec.structs.replace(sync, **both)
    return joined


def _match(senders: Syncs, engine: Syncs) -> list[tuple[int, SyncRecord]]:
    """Return each sync of an engine with the place of the sender's: what arrived tells, or else the time at which both ended."""
    found: list[tuple[int, SyncRecord]] = []
    after = 0
    for sync in engine:
        if not sync.ok or not sync.is_digested:
            continue
        shares = {place: _compare(senders[place], sync) for place in range(after, len(senders)) if senders[place].sent}
        best = max(shares, key=lambda place: (shares[place], -place), default=None)
        if best is not None and shares[best] < SAME:
            best = min(shares, key=lambda place: abs(_seconds(senders[place]) - _seconds(sync)))
            if found and _seconds(sync) < _seconds(senders[best]) - 1:  # times are whole seconds
                continue
        if best is not None:
            found.append((best, sync))
            after = best + 1
    return found


def _compare(sender: SyncRecord, engine: SyncRecord) -> float:
    """Return the share of the names that both have under which the same values were sent and arrived."""
    names = sender.sent.keys() & engine.sent.keys()
    return sum(sender.sent[name] == engine.sent[name] for name in names) / len(names) if names else 0.0


def _seconds(sync: SyncRecord) -> float:
    try:
        return datetime.fromisoformat(sync.time).timestamp()
    except ValueError:
        return 0.0


def _add_engine(sender: SyncRecord, engine: SyncRecord, prefix: str) -> SyncRecord:
    """Return a sync with what one engine holds after it. prefix: of its tensors' names."""
    return msgspec.structs.replace(
        sender,
        engine=sender.engine or engine.engine,
        version=sender.version or engine.version,
        before=sender.before or engine.before,
        cast={
            **sender.cast,
            **{name: value for name, value in engine.cast.items() if sender.sent.get(name) == engine.sent.get(name)},
        },
        held=sender.held | {f"{prefix}{key}": value for key, value in engine.held.items()},
        unseen=[*sender.unseen, *(f"{prefix}{key}" for key in engine.unseen)],
        written=sender.written | {f"{prefix}{key}": value for key, value in engine.written.items()},
        altered=sender.altered | {f"{prefix}{key}": text for key, text in engine.altered.items() if "/" in key},
        alike=engine.alike and (sender.alike or not sender.held),
        held_identity=engine.held_identity or sender.held_identity,
    )
