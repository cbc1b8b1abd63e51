"""A weight version of the tokens stands for two sets of weights, or two versions for one.

## What it checks
With `--history`, the record of syncs that `ckptcheck.watch` keeps: the digests of the weights behind the versions that the file
names. Within one run a version stands for one set of weights, and two versions for two.

## Why it matters
A version is a label, and someone has to count it up. Filters for stale tokens, corrections and the lag in curves believe it.
Where two sets of weights have one version, stale tokens pass for fresh ones; where two versions are the same weights, an update
was lost.

## How to fix
Set the version in the same call that updates the weights, and from the step of the trainer.

## When it can be wrong
- A step with a learning rate of 0, or one that rounds away in all tensors, leaves the weights as they are.
- The record is of another job, or of another engine.

## Seen in
radixark/miles#2244 (the counter jumps from 57 to 1), vLLM (the version stays `default`)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.linter.rule import Skip
from ckptcheck.rollouts.labelled_weights import find_ambiguous_versions, find_equal_versions
from ckptcheck.rollouts.rollout_evidence import RolloutEvidence
from ckptcheck.text.formatting import count


@rule(
    "PAR078",
    "mislabelled-weights",
    severity="error",
    on="rollouts",
    when=lambda evidence: evidence.is_well_formed and bool(evidence.weights),
)
def check(evidence: RolloutEvidence) -> Iterator[Problem]:
    versions = evidence.rollouts.metadata.versions
    if not {each.version for each in evidence.weights} & set(versions):
        raise Skip("the record has no sync of a version that the file names")
    ambiguous = find_ambiguous_versions(evidence.weights, versions)
    if ambiguous:
        earlier, later, differing, shared = ambiguous[0]
        text = f"version {later.version} stands for two sets of weights: {differing:,} of {count(shared, 'tensor')} differ after"
        text += f" sync {later.sync} from those after sync {earlier.sync}"
        yield Problem(text, key=f"version {later.version}", hint="set the version in the call that updates the weights")
    equal = find_equal_versions(evidence.weights, versions)
    if equal:
        one, other, tensors = equal[0]
        text = f"versions {one.version} and {other.version} are the same weights: {count(tensors, 'tensor')} with equal digests"
        text += f" after syncs {one.sync} and {other.sync}"
        hint = "find out whether the trainer took a step, and whether the update arrived (ckptcheck history)"
        yield Problem(text, key=f"version {other.version}", hint=hint, severity="warning")
