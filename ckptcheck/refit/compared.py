"""Which servers were held against something: one that was not, has not passed."""

from __future__ import annotations

from ckptcheck.refit.attached import Attached, Seen


def comparable(one: Seen, other: Seen) -> bool:
    """Whether checksums and logprobs of two servers should be equal, if they serve the same."""
    return _kind(one) == _kind(other)


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
            why = (evidence.unfit, evidence.untold, *seen.refused.values())
            told = "; ".join(dict.fromkeys(filter(None, why)))
            found[f"{seen.url} with {source}"] = told or "there are neither weights nor logprobs"
        elif source is None and not any(_replicas(seen, other) for other in evidence.servers if other is not seen):
            told = "; ".join(dict.fromkeys(seen.refused.values()))
            found[seen.url] = told or "no other server that answers has its engine, version, dtype, layout and device"
    return found


def _weights(seen: Seen, evidence: Attached) -> bool:
    reference = evidence.reference
    return bool(reference is not None and not evidence.unfit and reference.readable and seen.readable)


def _replicas(one: Seen, other: Seen) -> bool:
    return not other.dead and comparable(one, other) and both_told(one, other)


def _kind(seen: Seen) -> tuple[object, ...]:
    about = seen.about
    return about.engine, about.version, about.dtype, about.ranks, about.device
