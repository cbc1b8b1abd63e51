"""Engine and trainer agree to the last bit.

## What it checks
Of at least 64 compared tokens, not every one has the same logprob on both sides, bit for bit.

## Why it matters
Two implementations that agree to the last bit are rare, and hard work. More often one column was copied into the other, and
then no gap shows, however large it is.

## How to fix
Let the trainer compute logprobs of its own. If your set-up is meant to agree bit for bit, ignore this.

## When it can be wrong
True on-policy set-ups, with batch-invariant kernels on both sides, are equal.

## Seen in
volcengine/verl#7196 (bypass mode copies rollout_log_probs to old_log_probs and drops the metrics), #7688 and miles (true
on-policy: intended)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.rollouts.rollout_evidence import RolloutEvidence
from ckptcheck.text.formatting import count

LEAST = 64
"""Tokens below which equality may be chance."""


@rule("PAR014", "identical-logprobs", severity="info", on="rollouts", when=lambda evidence: evidence.has_both_sides)
def check(evidence: RolloutEvidence) -> Iterator[Problem]:
    metrics = evidence.metrics
    if metrics.tokens >= LEAST and metrics.abs_max == 0:
        text = (
            f"all {count(metrics.tokens, 'logprob')} of engine and trainer are equal to the last bit: the"
            f" set-up is truly on policy, or one column was copied"
        )
        yield Problem(text, hint="check that the trainer computed its own logprobs (in verl: no bypass mode)")
