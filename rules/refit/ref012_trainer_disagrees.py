"""Trainer and engine give the same tokens other logprobs.

## What it checks
After every sync the engine's logprobs of fixed sequences are those of the trainer: by prefill, and of their last tokens by steps of
decoding, which is other code and what rollouts are made with. (vLLM cannot be made to decode given tokens beside a draft model; the
report then says so, and prefill alone is judged.) How near is measured: a side differs
from itself when it is asked again, when each sequence is alone, and when weights are moved by their last place. Three times that
is allowed on average and ten times at most, and never less than 2e-6 and 1e-5 nats. The report shows that floor.

Where an engine rounds the inputs of its layers too (W8A8, FP8), the reference computes without that; the gap of the cold load,
twice, is then allowed after every sync, and the cold load itself is not judged, unless it is not finite.

## Why it matters
At the first step of a job the policy ratio has to be 1 and the KL 0. If the weights are equal and the cold load is as far off,
it is no fault of the sync: the two compute differently (rope, norms, the dtype of the head, the temperature).

## How to fix
With a cold load that is as far off: compare the configs of both sides. Else see the findings about weights.

## When it can be wrong
In bf16 a mixture of experts may route a token otherwise; one token is then far off, and no weight is wrong. Float32 tells.

## Seen in
verl, NeMo-RL and slime guides: `mult_prob_error`, Pearson, train/rollout mismatch KL
"""

from collections.abc import Iterator

from ckptcheck import Problem, Skip, rule
from ckptcheck.refit.judging import gaps, rounding_of_inputs
from ckptcheck.refit.trace import RefitTrace


@rule("REF012", "trainer-disagrees", severity="error", on="refit", when=lambda trace: bool(trace.scorings))
def check(trace: RefitTrace) -> Iterator[Problem]:
    if trace.floor.trainer.rounding is None:
        raise Skip("the trial ended before it was measured what rounding comes to")
    allowed = trace.floor.sides | rounding_of_inputs(trace)
    for scoring in trace.scorings:
        seen = gaps(scoring)
        when = f"sync {scoring.after}" if scoring.after else "a cold load"
        if seen.trainer.within(allowed):
            if seen.forced is None or seen.forced.within(allowed):
                continue
            yield Problem(
                f"after {when} trainer and engine are up to {seen.forced.most:.3g} nats apart where the engine decodes,"
                f" {seen.forced.mean:.3g} on average; noise explains {allowed.most:.2g} and {allowed.mean:.2g}, and by prefill they"
                f" are {seen.trainer.most:.2g} apart",
                hint="the engine decodes otherwise than it prefills: ckptcheck parity probe --only decode says more",
            )
            return
        path = not seen.cold.within(allowed)
        yield Problem(
            f"after {when} trainer and engine are up to {seen.trainer.most:.3g} nats apart, {seen.trainer.mean:.3g} on average;"
            f" noise explains {allowed.most:.2g} and {allowed.mean:.2g}"
            + (
                "; so is a cold load of the same weights: the two compute differently, the sync is not to blame"
                if path
                else ""
            ),
            hint="compare the configs of both sides" if path else "see the findings about weights",
        )
        return
