"""Tells a transport from a loader: compares what reached the engine's loader in a sync with what the trainer sent.

Both sides digest: the trainer what it exports, the engine what its model's own load_weights is called with.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Protocol, runtime_checkable

from ckptcheck.live.refit.trace import Key, RefitTrace, Sync
from ckptcheck.live.refit.weight_names import join_names, trainer_weights
from ckptcheck.live.runtime.engines.base import Arrival, LoadedParameter, LoadedWeights, TensorDigests


@runtime_checkable
class ArrivalRecorder(Protocol):
    """An engine that can note what passes through its model's load_weights."""

    def record_arrivals(self, expected: Sequence[str], *, is_brief: bool = False) -> None:
        """Note it from now on; is_brief: not the bytes that come, only those that it leaves when all of `expected` came."""
        ...

    def read_arrivals(self) -> LoadedWeights:
        """Return what has passed through it since then, and note nothing any more."""
        ...


class NotedArrivals:
    """What passed through the loader during one update: nothing where nothing was noted."""

    def __init__(self) -> None:
        self.arrived: tuple[Arrival, ...] | None = None
        self.loaded: Mapping[Key, LoadedParameter] = {}
        self.seconds = 0.0
        """Seconds of the update that were spent on digests of what the loader left."""


@contextmanager
def noted_arrivals(
    engine: object, expected: Sequence[str], *, is_wanted: bool, is_timed: bool
) -> Iterator[NotedArrivals]:
    """Note what passes through the engine's loader during an update, if the engine can.

    is_timed: the update runs at the engine's own speed: what comes is not digested, and the time for what it leaves is measured.
    """
    noted = NotedArrivals()
    if not is_wanted or not isinstance(engine, ArrivalRecorder):
        yield noted
        return
    engine.record_arrivals(expected, is_brief=is_timed)
    yield noted
    found = engine.read_arrivals()
    noted.arrived, noted.loaded = None if is_timed else found.arrived, found.parameters
    noted.seconds = found.seconds if is_timed else 0.0


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
    if not was_skipped and _was_right_when_loaded(sync, keys):
        pronoun = "it was" if len({own for _, own in keys}) == 1 else "they were"
        return f"; {pronoun} right when the engine's load_weights returned: something else changed {pronoun[:-4]} afterwards"
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
        else "the engine's loader is at fault"
        if _was_as_wrong_when_loaded(recorded, keys)
        else "the engine's loader, or what ran after it, is at fault"
    )
    return f"; {again}{whole} arrived at the engine's load_weights unchanged: {culprit}"


def _was_right_when_loaded(sync: Sync, keys: Collection[Key]) -> bool:
    """Return whether each of these was what a cold load holds when the loader returned."""
    return _loader_left(sync, sync.reference, keys)


def _was_as_wrong_when_loaded(sync: Sync, keys: Collection[Key]) -> bool:
    """Return whether each of these already was what it is now when the loader returned."""
    return _loader_left(sync, sync.manifest, keys)


def _loader_left(sync: Sync, found: TensorDigests, keys: Collection[Key]) -> bool:
    """Return whether each of these had the numbers of these digests when the loader returned."""
    return all(key in found and key in sync.loaded and sync.loaded[key].digest == found[key].digest for key in keys)


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
