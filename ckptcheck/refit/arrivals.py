"""Tells a transport from a loader: compares what reached the engine's loader in a sync with what the trainer sent.

Both sides digest: the trainer what it exports, the engine what its model's own load_weights is called with.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol, runtime_checkable

from ckptcheck.refit.trace import Key, RefitTrace, Sync
from ckptcheck.refit.weight_names import join_names, trainer_weights
from ckptcheck.runtime.engines.base import Arrival


@runtime_checkable
class ArrivalRecorder(Protocol):
    """An engine that can note what reaches its model's load_weights, which costs an update a pass over its bytes."""

    def record_arrivals(self) -> None:
        """Note it from now on."""
        ...

    def read_arrivals(self) -> tuple[Arrival, ...]:
        """Return what has reached it since then, in order, and note nothing any more."""
        ...


class NotedArrivals:
    """What arrived during one update: None where nothing was noted."""

    def __init__(self) -> None:
        self.arrived: tuple[Arrival, ...] | None = None


@contextmanager
def noted_arrivals(engine: object, is_wanted: bool) -> Iterator[NotedArrivals]:
    """Note what reaches the engine's loader during an update, if the engine can."""
    noted = NotedArrivals()
    if not is_wanted or not isinstance(engine, ArrivalRecorder):
        yield noted
        return
    engine.record_arrivals()
    yield noted
    noted.arrived = engine.read_arrivals()


def describe_arrival(
    trace: RefitTrace, sync: Sync, keys: Collection[Key], parts: Sequence[str] = (), *, was_skipped: bool = False
) -> str:
    """Say whether what these wrong engine tensors are built from arrived as it was sent, to end a message with.

    parts: the checkpoint's tensors that are wrong in them, where they are known. was_skipped: nothing of them was written.
    Returns "" where nothing tells.
    """
    weights = {weight.name: weight for weight in trace.weights}
    names = [name for name in parts if name in weights] or list(
        dict.fromkeys(source.name for _, own in sorted(keys) for source in trainer_weights(own, weights))
    )
    recorded = _find_recorded(trace, sync, keys)
    if recorded is None or not names or not set(names) <= recorded.sent.keys():
        return ""
    pronoun, verb = ("it", "is") if len({own for _, own in keys}) == 1 else ("they", "are")
    again = "" if recorded is sync else f"in sync {recorded.number}, where {pronoun} {verb} wrong again, "
    whole = f"what was sent for {'it' if pronoun == 'it' else 'them'}"
    arrived = _index_arrivals(recorded, {rank for rank, _ in keys})
    missing = [name for name in names if not all(name in each for each in arrived)]
    if missing:
        subject = whole if missing == names else join_names(missing)
        return f"; {again}{subject} never arrived at the engine's load_weights"
    changed = [name for name in names if any(each[name][-1] != recorded.sent[name] for each in arrived)]
    if changed:
        subject = whole if changed == names else join_names(changed)
        origin = _explain(trace, recorded, changed, arrived)
        return f"; {again}{subject} arrived at the engine's load_weights with other bytes than were sent{origin}"
    # in other buckets another part of it may be lost: that the whole is wrong again says nothing of this part then
    others = [source.name for _, own in keys for source in trainer_weights(own, weights)]
    if again and any(each.get(name, [""])[-1] != recorded.sent.get(name) for each in arrived for name in others):
        return ""
    culprit = (
        "the engine's loader skipped it, or wrote it into a copy or another tensor"
        if was_skipped
        else "the engine's loader, or what ran after it, is at fault"
    )
    return f"; {again}{whole} arrived at the engine's load_weights unchanged: {culprit}"


def _find_recorded(trace: RefitTrace, sync: Sync, keys: Collection[Key]) -> Sync | None:
    """Return the sync, if its arrivals were noted, or a later one that sent the same and left these tensors wrong again."""
    for each in trace.syncs[sync.number - 1 :]:
        if each.arrived is not None and each.sent == sync.sent:
            wrong = each.differing_tensors.keys() | each.unwritten_parts.keys()
            return each if each is sync or wrong.issuperset(keys) else None
    return None


def _index_arrivals(sync: Sync, ranks: Collection[int]) -> list[dict[str, list[str]]]:
    """Return, for each of these ranks, name → the digests under which it arrived, in order."""
    found: dict[int, dict[str, list[str]]] = {rank: {} for rank in sorted(ranks)}
    for arrival in sync.arrived or ():
        if arrival.rank in found:
            found[arrival.rank].setdefault(arrival.name, []).append(arrival.digest)
    return list(found.values())


def _explain(trace: RefitTrace, sync: Sync, changed: Sequence[str], arrived: Sequence[dict[str, list[str]]]) -> str:
    """Say what arrived in the place of the first of these, where it is known."""
    name = changed[0]
    digests = next(each[name] for each in arrived if each[name][-1] != sync.sent[name])
    which = "" if len(changed) == 1 else f" (of {name})"
    if len(digests) > 1 and sync.sent[name] in digests:
        return f": it arrived {len(digests)} times{which}, the last time otherwise"
    earlier = next((each for each in trace.syncs[: sync.number - 1] if each.sent.get(name) == digests[-1]), None)
    if earlier is not None:
        return f": those that sync {earlier.number} sent{which}"
    other = [own for own, digest in sync.sent.items() if digest == digests[-1]]
    return f": those of {other[0]}{which}" if len(other) == 1 else ""
