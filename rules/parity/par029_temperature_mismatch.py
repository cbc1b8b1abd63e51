"""One side divides logits by a temperature and the other does not.

## What it checks
Where both sides recorded distributions (top k or full vocabulary): the temperature T for which log-softmax(trainer / T) equals
the engine's logprobs. Differences between the logprobs of two ids do not contain the normaliser, so T is exact, whatever lies
outside of the top k. The rule reports T if it differs from 1 by more than 2 % and explains at least half of the difference.

## Why it matters
With a temperature on one side only, every ratio is off in a systematic way: likely tokens up, unlikely ones down. Losses fall
all the same.

## How to fix
Use the engine's processed logprobs (`--logprobs-mode processed_logprobs` in vLLM), or divide the trainer's logits by the
sampling temperature. Do one of the two, not both.

## When it can be wrong
- A scale of the logits that one side omits (`logits_scaling` of Granite, `logit_scale` of Cohere) looks like a temperature. Then
  the size is right and the name is not.
- The rule needs ids that both sides list in their top k.
- Where each sequence was drawn at its own temperature, one number explains too little, and the rule stays quiet.

## Seen in
vllm-project/vime#64, volcengine/verl#4162 and #4252, ServiceNow PipelineRL (vLLM V1 returns raw logprobs by default)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.linter.rule import Skip
from ckptcheck.rollouts.rollout_evidence import RolloutEvidence


@rule("PAR029", "temperature-mismatch", severity="error", on="rollouts", when=lambda evidence: evidence.has_both_sides)
def check(evidence: RolloutEvidence) -> Iterator[Problem]:
    fit = evidence.temperature_fit
    if fit is None:
        raise Skip(
            "the file lacks top-k or full-vocabulary logprobs of both sides, which a fit of the temperature needs"
        )
    if abs(fit.temperature - 1) > 0.02 and fit.after < fit.before / 2:
        sampling_temperature = evidence.rollouts.metadata.sampling.temperature
        clause = f"; the sampling temperature was {sampling_temperature:g}" if sampling_temperature is not None else ""
        text = f"a temperature of {fit.temperature:.4g} on the trainer's side closes the gap from {fit.before:.3g} to "
        text += f"{fit.after:.3g} nats{clause}"
        yield Problem(text, hint="take logprobs of the same distribution on both sides: raw, or processed")
