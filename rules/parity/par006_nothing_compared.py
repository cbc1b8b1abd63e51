"""Not one token could be compared.

## What it checks
That there are tokens under the response mask, and logprobs of both sides for them.

## Why it matters
A comparison of nothing passes every threshold. Frameworks report 0 for it, which reads as perfect.

## How to fix
Score the file with a trainer (`ckptcheck parity score`), or look at why the mask is empty.

## When it can be wrong
A file that holds one side on purpose, to be scored later, has nothing to compare yet: score it first. One token is
enough to be quiet, also where nearly everything was masked; the report's first line says how many were compared.

## Seen in
radixark/miles: an empty comparison passes its logprob comparator; NeMo-RL reports 0.0 as seq_mult_prob_error of nothing
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.parity.judged import Judged
from ckptcheck.phrase import count


@rule("PAR006", "nothing-compared", severity="error", on="rollouts", when=lambda judged: judged.sound)
def check(judged: Judged) -> Iterator[Problem]:
    rollouts = judged.rollouts
    missing = [side for side in ("engine", "trainer") if f"{side}_logprobs" not in rollouts]
    if not rollouts.number:
        yield Problem("there is no sequence, so nothing was compared", hint="see what the conversion left out")
    elif missing:
        hint = "ckptcheck parity score FILE adds them" if missing == ["trainer"] else "convert a file that has them"
        yield Problem(
            f"there are no logprobs of the {' and none of the '.join(missing)}, so nothing was compared", hint=hint
        )
    elif judged.measured is None:
        tokens = sum(int(block.mask.sum()) for block in rollouts.blocks())
        why = (
            f"none of {count(tokens, 'pair')} of logprobs is finite"
            if tokens
            else "no token is under the response mask"
        )
        yield Problem(f"{why}, so nothing was compared", hint="look at the mask and at the lengths of the responses")
