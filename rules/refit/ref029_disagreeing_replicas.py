"""Two servers that should serve the same do not.

## What it checks
Servers of the same engine, version, dtype and layout (see REF030; how many data-parallel copies they have may differ, and one may
have a draft model) give the same checksum for every tensor, report the same weight version, and give the same tokens the same
logprobs: within 1e-4 in float32, else within 0.1 on average. So do the copies of one server.

## Why it matters
A router sends each request to another replica. One that missed a sync, or that recovered without one, samples from an old
policy, and nothing in the mean of a batch shows it.

## How to fix
Sync the one that is behind before it gets traffic; with a checkpoint as SOURCE this check says which one it is.

## When it can be wrong
A sync that was under way while it was looking: pause generation, or look again.

## Seen in
radixark/miles#1724 (a recovered engine gets traffic before its first sync), vllm-project/vllm#57799
"""

from collections.abc import Iterator
from itertools import combinations

from ckptcheck import Problem, Skip, rule
from ckptcheck.phrase import count, few
from ckptcheck.refit.allowed import between, fits
from ckptcheck.refit.attached import Attached, Seen
from ckptcheck.refit.compared import both_told, comparable, differing


@rule("REF029", "disagreeing-replicas", severity="error", on="servers", when=lambda evidence: len(evidence.servers) > 1)
def check(evidence: Attached) -> Iterator[Problem]:
    compared = 0
    why = "the servers are of different engines, versions or layouts"
    for one, other in combinations(evidence.servers, 2):
        if one.dead or other.dead:
            why = f"{(one if one.dead else other).url} generates nothing"
            continue
        if not comparable(one, other):
            continue
        if not both_told(one, other):
            why = next(iter({**one.refused, **other.refused}.values()), "neither weights nor logprobs were asked for")
            continue
        compared += 1
        yield from _between(one, other)
    if not compared:
        raise Skip(why)


def _between(one: Seen, other: Seen) -> Iterator[Problem]:
    told_both = bool(one.checksums and other.checksums)
    wrong = sorted(differing(one.weights, other.weights)) if told_both else []
    held = len(one.weights.keys() | other.weights.keys())
    if one.drafts and other.drafts:
        held += len(one.drafts.keys() | other.drafts.keys())
        wrong += sorted(place for place, _ in one.drafts.items() ^ other.drafts.items())
    versions = one.about.weights, other.about.weights
    told = f" (weight versions {versions[0]} and {versions[1]})" if versions[0] != versions[1] and all(versions) else ""
    if wrong:
        names = [place.partition("/")[2] for place in dict.fromkeys(wrong)]
        yield Problem(
            f"{one.url} and {other.url} differ in {count(len(names), 'tensor')} of {held:,}: {few(names)}{told}",
            key=names[0],
            hint="give the checkpoint as SOURCE to see which is right",
        )
        return
    apart = between(one.scores, other.scores)
    if apart is not None and not fits(apart, one.about.dtype):
        yield Problem(
            f"{one.url} and {other.url} give the same tokens logprobs up to {apart.most:.3g} nats apart, {apart.mean:.3g} on"
            f" average{told}",
            hint="give the checkpoint as SOURCE to see which is right",
        )
    elif told:
        yield Problem(
            f"{one.url} reports the weight version {versions[0]} and {other.url} {versions[1]}, though they serve the same",
            hint="pass the version to every update call",
        )
