"""Some sequences of the source are missing from the rollouts.

## What it checks
The conversion could use every sequence. It leaves out a sequence whose tokens, mask and logprobs have different lengths, a
request that failed, a stream that ends before its answer does, and a stream that lost an event.

## Why it matters
- A trainer that does not check uses such a sequence all the same and pairs its tokens with logprobs of others.
- The lengths that disagree show who dropped or added a token.
- Failed requests are missing from every mean, and often those are the long ones.

## How to fix
Look at how the framework strips stop tokens, merges turns and pads. Repeat the requests that failed. Then convert again.

## When it can be wrong
Sequences that the run itself aborted may have no logprobs at all.

## Seen in
radixark/miles `Sample.validate`, which was added because lengths did disagree
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.document import clip
from ckptcheck.rollouts.rollout_evidence import RolloutEvidence


@rule("PAR002", "left-out-sequence", severity="warning", on="rollouts")
def check(evidence: RolloutEvidence) -> Iterator[Problem]:
    left_out = evidence.rollouts.metadata.left_out
    reasons: dict[str, list[int]] = {}
    for sequence in left_out:
        reasons.setdefault(sequence.reason, []).append(sequence.number)
    for reason, numbers in sorted(reasons.items(), key=lambda item: (-len(item[1]), item[1])):
        subject = (
            f"sequence {numbers[0]} was"
            if len(numbers) == 1
            else f"{len(numbers):,} sequences, the first {numbers[0]}, were"
        )
        hint = "find out who drops or adds a token, and repeat the requests that failed"
        yield Problem(f"{subject} left out: {clip(reason, 200)}", hint=hint)
