"""Sequences of the source are not among the rollouts.

## What it checks
That the conversion could take over every sequence. One whose tokens, mask and logprobs have different lengths cannot be
compared. Nor can a request that failed, a stream that ends before its answer does, or one of which an event is lost.

## Why it matters
A trainer that does not look takes such a sequence all the same, and pairs its tokens with logprobs of others. Which lengths
disagree tells who dropped or added a token. Requests that failed are missing from every mean, and often it is the long ones.

## How to fix
Look at how the framework strips stop tokens, merges turns and pads. Ask again what failed. Convert again.

## When it can be wrong
Sequences that the run itself had aborted may have no logprobs at all.

## Seen in
radixark/miles `Sample.validate`, which was added because lengths did disagree
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.document import clipped
from ckptcheck.parity.judged import Judged


@rule("PAR002", "left-out-sequence", severity="warning", on="rollouts", when=lambda judged: judged.sound)
def check(judged: Judged) -> Iterator[Problem]:
    left = judged.rollouts.metadata.left_out
    reasons: dict[str, list[int]] = {}
    for each in left:
        reasons.setdefault(each.reason, []).append(each.number)
    for reason, numbers in sorted(reasons.items(), key=lambda item: (-len(item[1]), item[1])):
        which = (
            f"sequence {numbers[0]} was"
            if len(numbers) == 1
            else f"{len(numbers):,} sequences, the first {numbers[0]}, were"
        )
        hint = "find out who drops or adds a token, or ask again what failed"
        yield Problem(f"{which} left out: {clipped(reason, 200)}", hint=hint)
