"""Trainer and engine give the same tokens other logprobs.

## What it checks
After every sync the engine's logprobs of fixed sequences by prefill are those of the trainer within 1e-4 in float32, and
elsewhere within twice the gap that the cold load of the same weights had (what this model's arithmetic costs).

## Why it matters
At the first step of a job the policy ratio has to be 1 and the KL 0. If the weights are equal and the cold load is as far off,
it is no fault of the sync: the two compute differently (rope, norms, the dtype of the head, the temperature).

## How to fix
With a cold load that is as far off: compare the configs of both sides. Else see the findings about weights.

## When it can be wrong
In bf16 a mixture of experts may route a token otherwise; one token is then far off, and no weight is wrong.

## Seen in
verl, NeMo-RL and slime guides: `mult_prob_error`, Pearson, train/rollout mismatch KL
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.refit.judging import apart
from ckptcheck.refit.trace import RefitTrace

EXACT = 1e-4


@rule("REF012", "trainer-disagrees", severity="error", on="refit", when=lambda trace: bool(trace.scorings))
def check(trace: RefitTrace) -> Iterator[Problem]:
    assert trace.engine is not None
    exact = "32" in trace.engine.dtype
    first = trace.scorings[0]
    floor = max(
        (apart(here.prompt, there) for here, there in zip(first.engine, first.trainer, strict=True)), default=0.0
    )
    for scoring in trace.scorings:
        gaps = [apart(here.prompt, there) for here, there in zip(scoring.engine, scoring.trainer, strict=True)]
        cold = [apart(here.prompt, there) for here, there in zip(scoring.cold, scoring.trainer, strict=True)]
        gap, allowed = max(gaps, default=0.0), EXACT if exact else max(EXACT, 2 * floor)
        if gap <= allowed:
            continue
        path = max(cold, default=0.0) > allowed
        when = "a cold load" if not scoring.after else f"sync {scoring.after}"
        yield Problem(
            f"after {when} trainer and engine are up to {gap:.3g} nats apart"
            + (
                "; so is a cold load of the same weights: the two compute differently, the sync is not to blame"
                if path
                else ""
            ),
            hint="compare the configs of both sides" if path else "see the findings about weights",
        )
        return
