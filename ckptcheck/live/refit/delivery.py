"""Says what the tensors that a sync did not write have in common: their place among the buckets, and the engine's answer."""

from __future__ import annotations

from collections.abc import Collection

from ckptcheck.live.refit.trace import RefitTrace, Sync
from ckptcheck.live.refit.weight_names import trainer_weights


def describe_delivery(trace: RefitTrace, sync: Sync, engine_names: Collection[str]) -> str:
    """Describe how these engine tensors were lost on their way, to end a message with; "" where nothing tells.

    A tensor counts as lost if all that it is built from was sent and the engine did not write it.
    """
    weights = {weight.name: weight for weight in trace.weights}
    # what the engine derives from parameters says nothing about them
    parameters = {name for (_, name), entry in sync.manifest.items() if entry.kind == "parameter"}
    sources = {
        source.name for name in parameters.intersection(engine_names) for source in trainer_weights(name, weights)
    }
    order = [name for names in sync.bucket_names for name in names]
    lost = sources & set(order)
    if not lost:
        return "; none of it was sent" if sources and order else ""
    place = _describe_place(sync, lost, order)
    reported = None if sync.answer.loaded_names is None else set(sync.answer.loaded_names) & (lost | set(engine_names))
    if reported:
        place += "; the engine says that it loaded them, so it wrote into a copy or into another tensor"
    return place


def describe_stop(sync: Sync, lost: Collection[str]) -> str:
    """Describe the place among the buckets of several weights that the engine did not write, to end a message with."""
    order = [name for names in sync.bucket_names for name in names]
    missing = set(lost) & set(order)
    return _describe_place(sync, missing, order) if len(missing) > 1 else ""


def _describe_place(sync: Sync, lost: Collection[str], order: list[str]) -> str:
    buckets = [names for names in sync.bucket_names if names]
    total = len(buckets)
    if len(lost) == len(order):
        return "; that is all that was sent"
    if len(lost) > 1 and set(order[-len(lost) :]) == lost:
        return f"; that is all from {order[-len(lost)]} on: the engine stopped there"
    whole = [number for number, names in enumerate(buckets, 1) if set(names) <= set(lost)]
    if total > 1 and whole and sum(len(buckets[number - 1]) for number in whole) == len(lost):
        numbers = ", ".join(map(str, whole[:8])) + (", …" if len(whole) > 8 else "")
        return f"; that is the whole of bucket{'s' if len(whole) > 1 else ''} {numbers} of {total:,}"
    for number, names in enumerate(buckets, 1):
        if 1 < len(lost) < len(names) and set(names[-len(lost) :]) == set(lost):
            return (
                f"; that is all of bucket {number:,} of {total:,} from {names[-len(lost)]} on: the engine stopped there"
            )
    for index, word in ((-1, "last"), (0, "first")):
        ends = {names[index] for names in buckets if len(names) > 1}
        if total > 1 and len(lost) > 1 and set(lost) <= ends:
            return f"; each is the {word} tensor of its bucket, of {total:,} buckets"
    if len(lost) == 1:
        number, names = next((number, names) for number, names in enumerate(buckets, 1) if set(lost) & set(names))
        at = names.index(next(iter(lost))) + 1
        edge = ", the last of its bucket" if at == len(names) else ""
        return f"; it was sent as tensor {at:,} of {len(names):,} in bucket {number:,} of {total:,}{edge}"
    return ""
