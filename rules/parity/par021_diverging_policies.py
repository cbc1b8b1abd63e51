"""The KL between engine and trainer is above its limit.

## What it checks
KL by the k3 estimate over the compared tokens and, where full-vocabulary logprobs are recorded, the exact KL both ways.
Limit: 0.01, `--max-kl`.

## Why it matters
Healthy syncs are seen at 1e-4 to 1e-3, broken ones from 1e-2 on, up to 5. Importance ratios clip what is left, so that
training goes on and learns less.

## How to fix
As for PAR020. A KL that is large from the first step on is a matter of weights or semantics, one that grows is a matter of
syncs.

## When it can be wrong
k3 has a heavy tail: one token that the trainer finds 10 nats likelier adds 22,000 to the sum. PAR024 shows whether it is
one sequence.

## Seen in
sgl-project/sglang#38298 (1.5), prime-rl#2714 (2 to 5), #3543 (0.194)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.parity.judged import Judged
from ckptcheck.parity.judging import older
from ckptcheck.phrase import count


@rule("PAR021", "diverging-policies", severity="error", on="rollouts", when=lambda judged: judged.scored)
def check(judged: Judged) -> Iterator[Problem]:
    gate, found, exact = judged.gates.kl, judged.gap, judged.exact
    if not found.k3 <= gate:
        names = ("trainer", "engine") if found.sampled_by == "trainer" else ("engine", "trainer")
        text = f"KL({names[0]} ‖ {names[1]}) is {found.k3:.3g} nats a token by k3{judged.times_floor('k3', found.k3)}"
        text += f", and the limit is {gate:g}" + older(judged)
        yield Problem(text, hint="ckptcheck refit tells whether it is the weights")
    elif exact is not None and not max(exact.engine_trainer, exact.trainer_engine) <= gate:
        text = f"the exact KL is {exact.engine_trainer:.3g} (engine ‖ trainer) and {exact.trainer_engine:.3g} "
        text += "(trainer ‖ engine) nats over "
        text += f"{count(exact.positions, 'position')}, and the limit is {gate:g}, though the sampled tokens give {found.k3:.3g}"
        yield Problem(text, hint="the sides differ in tokens that were not drawn")
