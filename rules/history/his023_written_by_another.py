"""The engine changed between two syncs, or in one that sent it nothing new.

## What it checks
- A tensor of the engine whose parts were sent with the same values as before, or not at all, is as after the sync before.
- Where the watch reads an engine of its own process before a sync too: it holds what it held after the sync before.
- The weight version that the engine reports before a sync is the one that it reported after the sync before: else a warning.
- Only syncs are compared of which the record has all weights, with no other sync in between. Experts are left out: an engine may
  move them to other places, to balance them.

## Why it matters
- The record of syncs is no longer the whole truth of what the engine computes with. A second job, a reload from disk, a restart, or
  an update session that packs weights again has written to it.

## How to fix
- Look for another writer: a second trainer, a health check that restarts the engine, a wake-up that discards weights.
- Where only an adapter was sent: open no session for base weights around it.

## When it can be wrong
- An engine that changes a weight by itself: scales that it calibrates while it serves.

## Seen in
radixark/miles#2715 (a session for base weights packs an already packed base again while only the adapter is sent),
radixark/miles#2244 (a failover in between)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.consumers.engine_tensors import find_source_tensors
from ckptcheck.runs.history.history import History, SyncPair
from ckptcheck.runs.history.record import NO_BYTES
from ckptcheck.text.formatting import count, join_truncated


@rule(
    "HIS023",
    "written-by-another",
    severity="error",
    on="history",
    when=lambda history: (
        any(map(_is_complete, history.pairs)) or any(sync.before or sync.written for sync in history.syncs[1:])
    ),
)
def check(history: History) -> Iterator[Problem]:
    last: dict[str, dict[str, str]] = {}
    found: list[tuple[int, list[str]]] = []
    complete = {pair.index: pair for pair in history.pairs if _is_complete(pair)}
    for index, sync in enumerate(history.syncs):
        known = last.setdefault(sync.run, {})
        if index in complete:
            found.append((index, _find_foreign(history, complete[index], known)))
        known.update(sync.sent)
    for indices, names in history.follow(found):
        sent = history.syncs[indices[0]].sent
        reason = "the trainer sent it nothing new" if any(name in sent for name in names) else "nothing was sent for it"
        yield Problem(
            f"{history.label(indices[0])}: {count(len(names), 'tensor')} of the engine changed although {reason}:"
            f" {join_truncated(names)}{history.describe_lasting(indices)}",
            key=names[0],
            hint="look for another writer: a second job, a restart, a session that packs the weights again",
        )
    yield from _find_written(history)
    yield from _find_versions(history)


def _find_written(history: History) -> Iterator[Problem]:
    """Describe what was written to the engine after a sync and before the next one."""
    # after the sync that is followed the engine still held what it was to hold
    found = [
        (index - 1, [key for key in sync.written if "experts" not in key])
        for index, sync in enumerate(history.syncs)
        if index
    ]
    for before, keys in history.follow(found):
        indices = [index + 1 for index in before]
        at, names = indices[0], [key.partition("/")[2] for key in keys if key in history.syncs[indices[0]].written]
        written = history.syncs[at].written
        origin = ""
        for earlier in range(at - 1):
            held = history.syncs[earlier].held
            if not held.keys().isdisjoint(written) and all(
                held.get(key, value) == value for key, value in written.items()
            ):
                origin = f"; {'it' if len(names) == 1 else 'they'} went back to what the engine held at {history.label(earlier)}"
                break
        yield Problem(
            f"{history.label(at)}: {count(len(names), 'tensor')} of the engine changed between the sync of"
            f" {history.label(at - 1)} and this one: {join_truncated(names)}{origin}{history.describe_lasting(indices)}",
            key=names[0],
            hint="look for another writer: a wake-up that restores a backup, a restart, a second job",
        )


def _is_complete(pair: SyncPair) -> bool:
    """Whether the record has all that was sent and held, and no sync lies in between."""
    return (
        pair.index == pair.before_index + 1
        and bool(pair.after.sent and pair.after.held and pair.before.held)
        and not (
            pair.after.group or pair.after.partial or pair.after.payload or pair.before.partial or pair.before.payload
        )
    )


def _find_foreign(history: History, pair: SyncPair, known: dict[str, str]) -> list[str]:
    """Return the engine's tensors that changed although nothing new was sent for them. known: name → what was last sent."""
    sent = pair.after.sent
    names = known.keys() | sent.keys()
    foreign: dict[str, None] = {}
    for key in sorted(pair.held_changed):
        name = key.partition("/")[2]
        values = pair.before.held[key], pair.after.held[key]
        if (
            "experts" in name
            or any(value in NO_BYTES or ":" in value for value in values)
            or (key in history.stored_as_sent and name in sent)  # HIS008 says it
        ):
            continue
        sources = find_source_tensors(name, names)
        is_known = (
            name in names or len(sources) > 1
        )  # of a fused tensor, other parts may have names that are not known here
        if is_known and sources and not any(source in sent and sent[source] != known.get(source) for source in sources):
            foreign[name] = None
    return list(foreign)


def _find_versions(history: History) -> Iterator[Problem]:
    for pair in history.version_pairs:
        held, left = pair.after.before, pair.before.version
        if pair.index == pair.before_index + 1 and held is not None and left is not None and held != left:
            yield Problem(
                f'{history.label(pair.index)}: before the sync the engine had version "{held}", and'
                f' "{left}" after the one before',
                severity="warning",
                hint="look for another writer, or for a restart of the engine",
            )
            return
