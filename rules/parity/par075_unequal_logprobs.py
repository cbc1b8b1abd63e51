"""With --exact: the logprobs of engine and trainer are not the same numbers.

## What it checks
With `judge --exact`, every compared token has the same finite logprob on both sides, and no sequence was left out. NaN and
infinities equal nothing. The first token that differs is named, with the distance in units in the last place (ulp).

## Why it matters
A run that is meant to be on policy bit for bit (batch-invariant kernels on both sides) trains with the ratio 1. The first ulp is
the sign that one kernel, one dtype or one weight is another; what follows from it is no bug of its own.

## How to fix
Look at the first token: position 1 differs for weights, dtypes or the head; a later position for a kernel that depends on the
length or the batch, or for a prefix cache. `ckptcheck parity why` and `parity localize` search for it.

## When it can be wrong
The logprobs went through a format with fewer digits (JSON rounded to six places, bfloat16). A column that was copied from the
other side is equal, too (PAR014).

## Seen in
THUDM/slime and radixark/miles true on-policy examples, volcengine/verl#7688
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.rollouts.rollout_evidence import RolloutEvidence
from ckptcheck.text.formatting import count


@rule(
    "PAR075",
    "unequal-logprobs",
    severity="error",
    on="rollouts",
    when=lambda evidence: evidence.thresholds.exact,
)
def check(evidence: RolloutEvidence) -> Iterator[Problem]:
    if left_out := evidence.rollouts.metadata.left_out:
        text = f"{count(len(left_out), 'sequence')} could not be compared, because the conversion left "
        text += "it out" if len(left_out) == 1 else "them out"
        yield Problem(text, hint="repeat the conversion with all of them: what was not compared is not equal")
    if not evidence.has_both_sides or not evidence.exactness.tokens:
        yield Problem("no token was compared, so nothing shows that the two sides are equal", hint="score the rollouts")
        return
    exactness = evidence.exactness
    if (first := exactness.first) is None:
        return
    text = f"{exactness.unequal:,} of {count(exactness.tokens, 'logprob')} differ, in {count(exactness.sequences, 'sequence')}; "
    # the digits that tell neighbours apart
    digits = 9 if first.dtype == "float32" else 17
    text += f"the first is that of token {first.token}: engine {first.engine:.{digits}g}, trainer {first.trainer:.{digits}g}"
    text += f", {first.ulps:,} ulp of {first.dtype} apart" if first.ulps is not None else ", not both finite"
    hint = "search from this token on (ckptcheck parity why, ckptcheck parity localize)"
    yield Problem(text, key=f"sequence {first.sequence}, token {first.position}", hint=hint)
