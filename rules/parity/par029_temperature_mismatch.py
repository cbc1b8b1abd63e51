"""One side divides logits by a temperature and the other does not.

## What it checks
Where both sides recorded distributions (top k or full vocabulary): the temperature T for which log-softmax(trainer / T) is
the engine. Differences of two ids' logprobs do not contain the normaliser, so that T is exact, whatever lies outside of the
top k. A finding when T is off from 1 by more than 2 % and explains at least half of the difference.

## Why it matters
With a temperature on one side only, every ratio is off in a systematic way: likely tokens up, unlikely ones down. Losses
fall all the same.

## How to fix
Use the engine's processed logprobs (`--logprobs-mode processed_logprobs` in vLLM), or divide the trainer's logits by the
sampling temperature; not one of both.

## When it can be wrong
A scale of the logits that one side forgets (`logits_scaling` of Granite, `logit_scale` of Cohere) is a temperature to
the numbers, and is told as one: the size is right then and the name is not. It takes ids that both sides listed in
their top k. Where each sequence was drawn at a temperature of its own, one number explains too little and the rule
stays quiet.

## Seen in
vllm-project/vime#64, volcengine/verl#4162 and #4252, ServiceNow PipelineRL (vLLM V1 returns raw logprobs by default)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.parity.judged import Judged
from ckptcheck.rule import Skip


@rule("PAR029", "temperature-mismatch", severity="error", on="rollouts", when=lambda judged: judged.scored)
def check(judged: Judged) -> Iterator[Problem]:
    found = judged.temperature
    if found is None:
        raise Skip("it takes top-k or full-vocabulary logprobs of both sides to solve for a temperature")
    if abs(found.temperature - 1) > 0.02 and found.after < found.before / 2:
        asked = judged.rollouts.metadata.sampling.temperature
        known = f"; the sampling temperature was {asked:g}" if asked is not None else ""
        text = (
            f"a temperature of {found.temperature:.4g} on the trainer's side closes the gap from {found.before:.3g} to "
        )
        text += f"{found.after:.3g} nats{known}"
        yield Problem(text, hint="let both sides take logprobs of the same distribution: raw, or processed")
