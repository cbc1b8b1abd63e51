"""Says where a tensor that a sync left wrong or unwritten was lost: among the buckets, on its way to the loader, or in the engine.

The trainer digests its export, and the engine digests what its model's load_weights receives. The comparison shows whether the
transport or the loader is at fault.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from ckptcheck.live.refit.observations import Key, Observations, Sync
from ckptcheck.live.refit.weight_names import join_names, trainer_weights
from ckptcheck.live.runtime.engines.base import TensorDigests
from ckptcheck.text.formatting import join_truncated


def describe_delivery(trace: Observations, sync: Sync, engine_names: Collection[str]) -> str:
    """Return the end of a message on where these engine tensors were lost; "" if unknown.

    A tensor counts as lost if the trainer sent all of its sources and the engine did not write it.
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
    """Return the end of a message on the position of the unwritten weights among the buckets."""
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
    if len(lost) == 1:
        number, names = next((number, names) for number, names in enumerate(buckets, 1) if set(lost) & set(names))
        at = names.index(next(iter(lost))) + 1
        edge = ", the last of its bucket" if at == len(names) else ""
        return f"; it was sent as tensor {at:,} of {len(names):,} in bucket {number:,} of {total:,}{edge}"
    return ""


def describe_arrival(
    trace: Observations, sync: Sync, keys: Collection[Key], parts: Sequence[str] = (), *, was_skipped: bool = False
) -> str:
    """Return the end of a message on whether the sources of these wrong engine tensors arrived as the trainer sent them.

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


def _find_recorded(trace: Observations, sync: Sync, keys: Collection[Key]) -> Sync | None:
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


def _explain(trace: Observations, sync: Sync, changed: Sequence[str], arrived: Sequence[dict[str, list[str]]]) -> str:
    """Say what arrived in the place of the first of these, where it is known."""
    name = changed[0]
    digests = next(each[name] for each in arrived if each[name][-1] != sync.sent[name])
    which = "" if len(changed) == 1 else f" (of {name})"
    if len(digests) > 1 and sync.sent[name] in digests:
        return f": it arrived {len(digests)} times{which}, the last time with other bytes"
    earlier = next((each for each in trace.syncs[: sync.number - 1] if each.sent.get(name) == digests[-1]), None)
    if earlier is not None:
        return f": those that sync {earlier.number} sent{which}"
    other = [own for own, digest in sync.sent.items() if digest == digests[-1]]
    return f": those of {other[0]}{which}" if len(other) == 1 else ""


def find_misplaced(sync: Sync, keys: Collection[Key]) -> dict[Key, str]:
    """Return tensor → the one other tensor of the rank whose values, as a cold load has them, it holds.

    If several tensors of the cold load are equal (norms of ones), a digest cannot name the origin: the result lacks the tensor.
    """
    held: dict[tuple[int, str], set[str]] = {}
    for (rank, name), entry in sync.reference.items():
        if entry.digest and entry.kind == "parameter":
            held.setdefault((rank, entry.digest), set()).add(name)
    found: dict[Key, str] = {}
    for rank, name in keys:
        others = held.get((rank, sync.manifest[rank, name].digest), set()) - {name}
        if len(others) == 1:
            found[rank, name] = next(iter(others))
    return found


def describe_misplaced(found: Mapping[Key, str]) -> str:
    """Describe them, each once."""
    others = {name: other for (_, name), other in found.items()}
    return join_truncated([f"{name} holds the values of {other}" for name, other in sorted(others.items())])
