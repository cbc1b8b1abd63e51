"""A weight version of the tokens is not that of the weights that drew them.

## What it checks
- With `--history`, the record of syncs that `ckptcheck.watch` keeps: the digests of the weights behind the versions that the file
  names. Within one run a version stands for one set of weights, and two versions for two.
- Without it, where tokens have several versions: those of the trainer's own lie at the floor. The rule reports a gap three times
  that of another version, by the medians over at least 4 segments and 256 tokens of each.
- Where the version changes to the trainer's own inside of at least 8 responses: the last 16 tokens before the change have the gap
  of the old weights. The rule reports a third of that gap.

## Why it matters
A version is a label, and someone has to count it up. Filters for stale tokens, corrections and the lag in curves believe it.
Where two sets of weights have one version, stale tokens pass for fresh ones; where two versions are the same weights, an update
was lost. A label that is read when a response ends, and not when it begins, is that of weights that came later.

## How to fix
Set the version in the same call that updates the weights, and from the step of the trainer. Read it before a request is sent.

## When it can be wrong
- A step with a learning rate of 0, or one that rounds away in all tensors, leaves the weights as they are.
- The record is of another job, or of another engine.
- The labels are right, and the last update changed the weights on their way: `ckptcheck refit` compares them.
- After an update in flight the first tokens can differ because the cache keeps keys of the old weights. The rule does not look at
  them; the table *gap by weight version* shows them.

## Seen in
radixark/miles#2244 (the counter jumps from 57 to 1), vLLM (the version stays `default`), areal-project/AReaL#1569 and
rllm-org/rllm#622 (read after the response), Tencent-Hunyuan/UniRL#324 (calls counted in place of steps)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.linter.rule import Skip
from ckptcheck.rollouts.labelled_weights import find_ambiguous_versions, find_equal_versions
from ckptcheck.rollouts.metrics.version_gaps import EDGE, VersionGaps, median
from ckptcheck.rollouts.rollout_evidence import RolloutEvidence
from ckptcheck.text.formatting import count

TIMES = 3.0
"""How many times another gap one has to be: what tokens stand in a segment moves its gap too."""
LEAST_SEGMENTS, LEAST_TOKENS, LEAST_CHANGES = 4, 256, 8
"""Fewest segments and tokens of a version, and responses with a change, that show its gap."""
SMALL = 1e-6
"""Nats below which sides agree to rounding in float32, where a multiple of a floor of 0 says nothing."""


@rule(
    "PAR078",
    "mislabelled-weights",
    severity="error",
    on="rollouts",
    when=lambda evidence: bool(evidence.weights or evidence.version_gaps),
)
def check(evidence: RolloutEvidence) -> Iterator[Problem]:
    if evidence.version_gaps is not None:
        yield from _find_other_label(evidence.version_gaps, evidence.own_version)
        yield from _find_late_label(evidence.version_gaps, evidence.own_version)
    if evidence.weights:
        yield from _judge_record(evidence)
    elif evidence.version_gaps is None or evidence.own_version not in evidence.version_gaps.by_version:
        raise Skip("no token has the version of the trainer's weights, as far as the file records it")


def _find_other_label(gaps: VersionGaps, own: str | None) -> Iterator[Problem]:
    """Yield a problem where the trainer's own version has a gap, and another one has none."""
    enough = {
        name: each
        for name, each in gaps.by_version.items()
        if each.number >= LEAST_SEGMENTS and each.tokens >= LEAST_TOKENS
    }
    if own not in enough or len(enough) < 2:
        return
    other = min((name for name in enough if name != own), key=lambda name: enough[name].middle)
    mine, theirs = enough[own].middle, enough[other].middle
    # A gap that grows along the response is larger in later versions, and does not jump where one begins.
    before = gaps.before.get((other, own))
    jumps = before is None or median(enough[own].first) > TIMES * median(before.last)
    if mine > max(TIMES * theirs, SMALL) and jumps:
        text = f"the tokens of version {own}, the trainer's own, differ by {mine:.3g} nats, and those of version {other} by"
        text += f" {theirs:.3g}: the trainer scored with the weights of version {other}, or those of {own} are not what it sent"
        yield Problem(
            text,
            key=f"version {own}",
            hint="compare the engine's weights with the trainer's (ckptcheck refit), then look where the version is counted up",
        )


def _find_late_label(gaps: VersionGaps, own: str | None) -> Iterator[Problem]:
    """Yield a problem where the gap ends some tokens before the version becomes the trainer's own."""
    for (version, following), each in gaps.before.items():
        if following != own or each.number < LEAST_CHANGES:
            continue
        last, rest, new = median(each.last), median(each.rest), gaps.by_version[following].middle
        if rest > max(TIMES * last, SMALL) and last <= max(TIMES * new, SMALL):
            text = f"in {count(each.number, 'response')} the last {EDGE} tokens of version {version} differ by {last:.3g} nats,"
            text += f" and those before by {rest:.3g}: they are of version {own}, whose tokens differ by {new:.3g}"
            yield Problem(
                text,
                key=f"version {version}",
                hint="record the version at the engine step that draws a token, not when the request is recorded",
                severity="warning",
            )


def _judge_record(evidence: RolloutEvidence) -> Iterator[Problem]:
    """Yield the problems of versions whose weights the record of syncs knows."""
    versions = evidence.rollouts.metadata.versions
    if not {each.version for each in evidence.weights} & set(versions):
        raise Skip("the record has no sync of a version that the file names")
    ambiguous = find_ambiguous_versions(evidence.weights, versions)
    if ambiguous:
        earlier, later, differing, shared = ambiguous[0]
        names = tuple(name for name, digest in later.digests.items() if earlier.digests.get(name, digest) != digest)
        text = f"version {later.version} stands for two sets of weights: {differing:,} of {count(shared, 'tensor')} differ after"
        text += f" sync {later.sync} from those after sync {earlier.sync}"
        yield Problem(
            text,
            key=f"version {later.version}",
            hint="set the version in the call that updates the weights",
            names=names,
        )
    equal = find_equal_versions(evidence.weights, versions)
    if equal:
        one, other, tensors = equal[0]
        text = f"versions {one.version} and {other.version} are the same weights: {count(tensors, 'tensor')} with equal digests"
        text += f" after syncs {one.sync} and {other.sync}"
        hint = "find out whether the trainer took a step, and whether the update arrived (ckptcheck refit history)"
        names = tuple(name for name in other.digests if name in one.digests)
        yield Problem(text, key=f"version {other.version}", hint=hint, severity="warning", names=names)
