"""Which servers can be held against which, and in what they differ: one that was held against nothing has not passed."""

from __future__ import annotations

from collections.abc import Mapping

from ckptcheck.refit.attached import Attached, Seen


def comparable(one: Seen, other: Seen) -> bool:
    """Whether checksums and logprobs of two servers should be equal, if they serve the same."""
    return _kind(one) == _kind(other) and not one.about.layout.unlike(other.about.layout)


def unlike(seen: Seen, reference: Seen) -> str:
    """Say why checksums of the reference mean nothing beside those of a server; "" where they do."""
    theirs, ours = seen.about, reference.about
    pairs = {
        "version": (theirs.name, ours.name),
        "dtype": (theirs.dtype, ours.dtype),
        "device": (theirs.device, ours.device),
    }
    for what, (there, here) in pairs.items():
        if there and here and there != here and "auto" not in (there, here):
            return f"{seen.url} has another {what} than the reference: {there}, not {here}"
    laid = theirs.layout.unlike(ours.layout)
    return f"{seen.url} has another layout than the reference: {laid}" if laid else ""


def differing(one: Mapping[str, frozenset[str]], other: Mapping[str, frozenset[str]]) -> list[str]:
    """Return the places at which two differ, or the copies of one among themselves, in the order of the engine."""
    alone: frozenset[str] = frozenset()
    pairs = {place: (one.get(place, alone), other.get(place, alone)) for place in {**other, **one}}
    return [place for place, (mine, yours) in pairs.items() if mine != yours or len(mine) > 1]


def both_told(one: Seen, other: Seen) -> bool:
    """Whether both gave weights, or both logprobs."""
    return bool((one.checksums and other.checksums) or (one.scores and other.scores))


def uncompared(evidence: Attached, source: str | None) -> dict[str, str]:
    """Return what should have been compared and was not → why. source: what the servers should serve, None for each other's.

    A server that is dead, or came to harm by an update, is a finding already.
    """
    found = {}
    for seen in evidence.servers:
        if seen.dead or (seen.written is not None and not seen.written.answer.ok):
            continue
        if source is not None and not (_weights(seen, evidence) or (seen.scores and evidence.truth)):
            other = unlike(seen, evidence.reference) if evidence.reference is not None else evidence.unfit
            why = (other, evidence.untold, *seen.refused.values())
            told = "; ".join(dict.fromkeys(filter(None, why)))
            found[f"{seen.url} with {source}"] = told or "there are neither weights nor logprobs"
        elif source is None and not any(_replicas(seen, other) for other in evidence.servers if other is not seen):
            told = "; ".join(dict.fromkeys(seen.refused.values()))
            found[seen.url] = told or "no other server that answers has its engine, version, dtype, layout and device"
    return found


def _weights(seen: Seen, evidence: Attached) -> bool:
    reference = evidence.reference
    return reference is not None and bool(reference.weights and seen.weights) and not unlike(seen, reference)


def _replicas(one: Seen, other: Seen) -> bool:
    return not other.dead and comparable(one, other) and both_told(one, other)


def _kind(seen: Seen) -> tuple[object, ...]:
    about = seen.about
    return about.engine, about.version, about.dtype, about.device
