"""Engine and trainer agree to the last bit.

## What it checks
That not every one of at least 64 compared tokens has the same logprob on both sides, bit for bit.

## Why it matters
Two implementations that agree to the last bit are rare, and hard work. More often one column was copied into the other:
then there is no gap to be seen, however large it is.

## How to fix
Where it is meant, nothing: ignore this. Else let the trainer compute logprobs of its own.

## When it can be wrong
True on-policy set-ups, with batch-invariant kernels on both sides, are equal.

## Seen in
volcengine/verl#7196 (bypass mode copies rollout_log_probs to old_log_probs and drops the metrics), #7688 and miles (true
on-policy: meant)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.parity.judged import Judged
from ckptcheck.phrase import count

LEAST = 64


@rule("PAR014", "identical-logprobs", severity="info", on="rollouts", when=lambda judged: judged.scored)
def check(judged: Judged) -> Iterator[Problem]:
    found = judged.gap
    if found.tokens >= LEAST and found.abs_max == 0:
        text = f"all {count(found.tokens, 'logprob')} of engine and trainer are equal to the last bit: truly on policy, or copied"
        yield Problem(text, hint="see whether the trainer computed its own (in verl: no bypass mode)")
