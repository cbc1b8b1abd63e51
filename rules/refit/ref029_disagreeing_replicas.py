"""Two servers that should serve the same weights differ.

## What it checks
- The rule compares servers of the same engine, version, dtype and layout (see REF030). They may have different
  numbers of data-parallel copies, and one may have a draft model.
- Both give the same checksum for every tensor and report the same weight version.
- Both give the same tokens the same logprobs: within 1e-4 nats in float32, otherwise within 0.1 nats on average.
- The copies inside one server agree too.

## Why it matters
- A router sends each request to some replica. A replica that missed a sync, or that came back without one, samples
  from an old policy, and the mean of a batch does not show it.

## How to fix
- Sync the replica that is behind before it gets traffic. With a checkpoint as SOURCE, this check says which one that
  is.

## When it can be wrong
- A sync may have run during the check. Pause generation, or check again.

## Seen in
radixark/miles#1724 (a recovered engine gets traffic before its first sync), vllm-project/vllm#57799
"""

from collections.abc import Iterator, Sequence
from itertools import combinations

from msgspec import structs

from ckptcheck import Problem, Skip, rule
from ckptcheck.live.refit.running_servers.comparability import (
    compare_scores,
    differing_places,
    have_common_evidence,
    is_comparable,
    is_within_tolerance,
)
from ckptcheck.live.refit.running_servers.trace import ServerEvidence, ServerState
from ckptcheck.text.formatting import count, join_truncated


@rule("REF029", "disagreeing-replicas", severity="error", on="servers", when=lambda evidence: len(evidence.servers) > 1)
def check(evidence: ServerEvidence) -> Iterator[Problem]:
    compared = 0
    skip_reason = "the servers have different engines, versions or layouts"
    for one, other, alike in _choose_pairs(evidence.servers):
        if one.dead_reason or other.dead_reason:
            skip_reason = f"{(one if one.dead_reason else other).url} generates no tokens"
            continue
        if not is_comparable(one, other):
            continue
        if not have_common_evidence(one, other):
            refusals = {**one.refusals, **other.refusals}
            skip_reason = next(iter(refusals.values()), "neither weights nor logprobs were asked for")
            continue
        compared += 1
        for problem in _compare_servers(one, other):
            yield structs.replace(problem, message=problem.message + alike)
    if not compared:
        raise Skip(skip_reason)


def _choose_pairs(servers: Sequence[ServerState]) -> Iterator[tuple[ServerState, ServerState, str]]:
    """Yield the pairs to compare: each server with the first that gives the same checksums, and these with each other.

    The third says of how many servers the problems of a pair are, where it is more than two.
    """
    groups: dict[object, list[ServerState]] = {}
    for number, server in enumerate(servers):
        info = server.info
        checksums = frozenset(server.checksums.items()), frozenset(server.draft_checksums.items())
        kind = info.engine, info.version, info.dtype, info.device, repr(info.layout), info.weight_version
        groups.setdefault((kind, checksums) if server.checksums and not server.dead_reason else number, []).append(
            server
        )
    for first, *others in groups.values():
        for other in others:
            yield first, other, ""
    for ours, theirs in combinations(groups.values(), 2):
        alike = f"; {len(ours):,} servers are like the first, {len(theirs):,} like the second"
        yield ours[0], theirs[0], alike if len(ours) + len(theirs) > 2 else ""


def _compare_servers(one: ServerState, other: ServerState) -> Iterator[Problem]:
    have_checksums = bool(one.checksums and other.checksums)
    different = sorted(differing_places(one.weights, other.weights)) if have_checksums else []
    total = len(one.weights.keys() | other.weights.keys())
    if one.draft_checksums and other.draft_checksums:
        total += len(one.draft_checksums.keys() | other.draft_checksums.keys())
        different += sorted(place for place, _ in one.draft_checksums.items() ^ other.draft_checksums.items())
    versions = one.info.weight_version, other.info.weight_version
    version_note = (
        f" (weight versions {versions[0]} and {versions[1]})" if versions[0] != versions[1] and all(versions) else ""
    )
    if different:
        names = [place.partition("/")[2] for place in dict.fromkeys(different)]
        yield Problem(
            f"{one.url} and {other.url} differ in {len(names):,} of {count(total, 'tensor')}:"
            f" {join_truncated(names)}{version_note}",
            key=names[0],
            hint="give the checkpoint as SOURCE to see which is right",
            names=tuple(names),
        )
        return
    difference = compare_scores(one.scores, other.scores)
    if difference is not None and not is_within_tolerance(difference, one.info.dtype):
        yield Problem(
            f"{one.url} and {other.url} give the same tokens logprobs that differ by up to {difference.most:.3g} nats,"
            f" {difference.mean:.3g} on average{version_note}",
            hint="give the checkpoint as SOURCE to see which is right",
        )
    elif version_note:
        yield Problem(
            f"{one.url} reports the weight version {versions[0]} and {other.url} {versions[1]}, although they serve the same"
            " weights",
            hint="pass the version to every update call",
        )
