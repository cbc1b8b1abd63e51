"""Full-vocabulary logprobs do not add up to probability 1.

## What it checks
Where full-vocabulary logprobs are recorded: the logarithm of the sum of all probabilities, which has to be 0. The rule allows
0.01.

## Why it matters
- The column holds logits in place of logprobs, a slice of the vocabulary (one tensor-parallel rank's part), or padding rows that
  were counted in. A KL or a temperature computed from them means nothing.
- The rule also reports NaN, and rows in which nothing was recorded.

## How to fix
Apply log-softmax over the whole vocabulary before recording.

## When it can be wrong
A sum over 150,000 ids in bfloat16 is off by more than this.

## Seen in
NVIDIA/Megatron-LM#7452 (logits that were gathered already, normalized once more over the ranks: every logprob is off by the
logarithm of the number of ranks), huggingface/trl#6789 (logprobs over what top-p left, against those over the whole vocabulary)
"""

from collections.abc import Iterator
from math import inf

from ckptcheck import Problem, rule
from ckptcheck.linter.rule import Skip
from ckptcheck.rollouts.rollout_evidence import RolloutEvidence

TOLERANCE = 0.01


@rule(
    "PAR032",
    "unnormalized-distribution",
    severity="error",
    on="rollouts",
    when=lambda evidence: evidence.is_well_formed and "full_positions" in evidence.rollouts,
)
def check(evidence: RolloutEvidence) -> Iterator[Problem]:
    exact_kl = evidence.exact_kl
    if exact_kl is None:
        raise Skip("the file lacks full-vocabulary logprobs of both sides at the same positions")
    if exact_kl.mass == inf:
        yield Problem("the logprobs of a position contain NaN, or no number at all", hint="look at what recorded them")
    elif not exact_kl.mass <= TOLERANCE:
        text = (
            f"the probabilities of one position add up to e^{exact_kl.mass:.4g} or e^-{exact_kl.mass:.4g}, and not to 1"
        )
        yield Problem(text, hint="these are logits, or a part of the vocabulary: apply log-softmax over all of it")
