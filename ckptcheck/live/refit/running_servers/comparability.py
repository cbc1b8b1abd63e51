"""Which servers can be compared with each other or with a reference, and how far their logprobs may differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ckptcheck.live.refit.logprob_diff import LogprobDiff, compare_logprobs
from ckptcheck.live.refit.running_servers.trace import ServerEvidence, ServerState
from ckptcheck.live.runtime.engines.base import SequenceScores

EXACT = 1e-4
"""Nats by which two programs may differ in float32: transformers, Megatron and both engines agree within 1e-5."""
COARSE = 0.1
"""Nats by which they may differ on average with 8 or 16 bits, if the effect on this model is unknown."""


def is_comparable(one: ServerState, other: ServerState) -> bool:
    """Whether checksums and logprobs of two servers are equal if they serve the same weights."""
    return _kind(one) == _kind(other) and not one.info.layout.difference(other.info.layout)


def reference_mismatch(server: ServerState, reference: ServerState) -> str:
    """Return why checksums of the reference do not compare with those of a server; "" if they do."""
    theirs, ours = server.info, reference.info
    pairs = {
        "version": (theirs.name, ours.name),
        "dtype": (theirs.dtype, ours.dtype),
        "device": (theirs.device, ours.device),
    }
    for property_name, (server_value, reference_value) in pairs.items():
        if (
            server_value
            and reference_value
            and server_value != reference_value
            and "auto" not in (server_value, reference_value)
        ):
            return f"{server.url} has another {property_name} than the reference: {server_value}, not {reference_value}"
    difference = theirs.layout.difference(ours.layout)
    return f"{server.url} has another layout than the reference: {difference}" if difference else ""


def differing_places(one: Mapping[str, frozenset[str]], other: Mapping[str, frozenset[str]]) -> list[str]:
    """Return the places where two servers differ, or the copies of the first one, in the order of the engine."""
    nothing: frozenset[str] = frozenset()
    pairs = {place: (one.get(place, nothing), other.get(place, nothing)) for place in {**other, **one}}
    return [place for place, (mine, yours) in pairs.items() if mine != yours or len(mine) > 1]


def have_common_evidence(one: ServerState, other: ServerState) -> bool:
    """Whether both gave checksums, or both logprobs."""
    return bool((one.checksums and other.checksums) or (one.scores and other.scores))


def find_uncompared(evidence: ServerEvidence, source: str | None) -> dict[str, str]:
    """Return what should have been compared and was not → why.

    source: what the servers should serve, None if they are compared with each other only. A server that is dead, or whose
    update failed, is a finding already.
    """
    uncompared = {}
    for server in evidence.servers:
        if server.dead_reason or (server.update_trial is not None and not server.update_trial.result.ok):
            continue
        has_logprobs = bool(server.scores and evidence.trainer_scores)
        has_reference = has_comparable_weights(server, evidence) or has_logprobs or holds_source(server, evidence)
        if source is not None and not has_reference:
            mismatch = (
                reference_mismatch(server, evidence.reference)
                if evidence.reference is not None
                else evidence.reference_skipped
            )
            reasons = filter(None, (mismatch, evidence.trainer_skipped, *server.refusals.values()))
            reason = "; ".join(dict.fromkeys(reasons))
            uncompared[f"{server.url} with {source}"] = reason or "there are neither weights nor logprobs"
        elif source is None and not any(
            _is_replica(server, other) for other in evidence.servers if other is not server
        ):
            reason = "; ".join(dict.fromkeys(server.refusals.values()))
            uncompared[server.url] = (
                reason or "no other server that answers has its engine, version, dtype, layout and device"
            )
    return uncompared


def has_comparable_weights(server: ServerState, evidence: ServerEvidence) -> bool:
    """Whether the weights of a server can be compared with those of the engine that was started here."""
    reference = evidence.reference
    if reference is None or not (reference.weights and server.weights):
        return False
    return not reference_mismatch(server, reference)


def holds_source(server: ServerState, evidence: ServerEvidence) -> bool:
    """Whether the identity of a server's weights shows that they are those of the checkpoint."""
    return bool(evidence.source_identity) and server.identity == evidence.source_identity


def _is_replica(one: ServerState, other: ServerState) -> bool:
    return not other.dead_reason and is_comparable(one, other) and have_common_evidence(one, other)


def _kind(server: ServerState) -> tuple[object, ...]:
    info = server.info
    return info.engine, info.version, info.dtype, info.device


def compare_scores(
    one: Sequence[SequenceScores], other: Sequence[SequenceScores] | Sequence[Sequence[float]]
) -> LogprobDiff | None:
    """Compare the prefill logprobs of the same sequences; None if a side has none."""
    if not one or not other:
        return None
    other_logprobs = [scores.prompt_logprobs if isinstance(scores, SequenceScores) else scores for scores in other]
    return compare_logprobs([scores.prompt_logprobs for scores in one], other_logprobs)


def is_within_tolerance(difference: LogprobDiff, dtype: str, floor: LogprobDiff | None = None) -> bool:
    """Whether arithmetic explains a difference. dtype: of the server; floor: difference of a side that is known to be right."""
    if "32" in dtype:
        return difference.most <= EXACT
    if floor is not None:
        return difference.most <= max(EXACT, 2 * floor.most)
    return difference.mean <= COARSE
