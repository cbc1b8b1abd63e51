"""A logprob is infinite.

## What it checks
Every logprob under the response mask. A token that was drawn cannot have had probability 0 on the side that drew it.

## Why it matters
-inf means: this token was impossible. Its ratio is 0 or infinite, and KL with it. The other side says so when it cuts off
the distribution (top-p, top-k) before the logprob is taken, or masks ids of padding.

## How to fix
Take the trainer's logprobs without top-p and top-k, or train with the same mask of allowed ids.

## When it can be wrong
Where a file was drawn by the trainer, an engine that samples with top-k or a mask of allowed ids says -inf of tokens
it never draws, and is right to. The gap is infinite all the same, so take its raw logprobs. A writer may also use
-inf for a place that has none; leave it out of the mask. A floor such as -1e10 in place of -inf is finite and shows
in PAR020 only.

## Seen in
vLLM `processed_logprobs` with top-p: ids outside of the nucleus are -inf
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.parity.judged import Judged
from ckptcheck.parity.judging import logprob_columns, seen, whose
from ckptcheck.phrase import count


@rule("PAR004", "infinite-logprob", severity="error", on="rollouts", when=lambda judged: judged.sound)
def check(judged: Judged) -> Iterator[Problem]:
    import numpy as np

    for column in logprob_columns(judged):
        if found := seen(judged, column, np.isinf):
            text = f"{whose(column)} is {found.value:g} for {count(found.number, 'token')} in {count(found.sequences, 'sequence')}"
            text += ", so that its probability is 0" if found.value < 0 else ""
            yield Problem(
                text, key=f"{column}, {found.place}", hint="take logprobs before top-p, top-k and masks of ids"
            )
