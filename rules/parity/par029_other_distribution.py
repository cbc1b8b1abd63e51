"""The two sides take logprobs of different distributions.

## What it checks
- Where both sides recorded distributions (top k or full vocabulary): the temperature T for which log-softmax(trainer / T) equals
  the engine's logprobs. Differences between the logprobs of two ids do not contain the normaliser, so T is exact, whatever lies
  outside of the top k. The rule reports T if it differs from 1 by more than 2 % and explains at least half of the difference.
- Else the metadata, or where they are silent the job (`--job`): the temperature that the engine sampled with, whether its logprobs
  are raw or processed, and the temperature by which the trainer divides have to agree.
- What the file records of temperature, top-p and top-k is what the job says; else a warning.
- Processed logprobs do not come from a truncated distribution (top-p, top-k) or one with penalties (presence, frequency,
  repetition), which the trainer does not compute. Trainers that do, of a job with `--job`, may.

## Why it matters
Raw logprobs are the model's, processed ones those of the distribution that the engine samples from. At a temperature other than
1 these are two policies: every ratio is off systematically, likely tokens up, unlikely ones down. Losses fall all the same.

## How to fix
Do one of the two, not both:

- Use the engine's processed logprobs. vLLM: `--logprobs-mode processed_logprobs`. SGLang reports processed logprobs by default.
- Let the trainer divide by the same temperature as the engine, or not at all.

## When it can be wrong
- Metadata can be wrong. If you record distributions, the rule measures the temperature.
- A scale of the logits that one side omits (`logits_scaling` of Granite, `logit_scale` of Cohere) looks like a temperature. Then
  the size is right and the name is not.
- The measurement needs ids that both sides list in their top k. Where each sequence was drawn at its own temperature, one number
  explains too little, and the rule stays quiet.

## Seen in
vllm-project/vime#64 (vLLM raw by default, Megatron with temperature), volcengine/verl#4162 and #4252, NeMo-RL#4015, ServiceNow
PipelineRL (vLLM V1 returns raw logprobs by default), vllm-project/vllm#12622 (a model's file sets the sampling of a job)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.linter.rule import Skip
from ckptcheck.rollouts.rollout_evidence import RolloutEvidence
from ckptcheck.text.formatting import join_words

TEMPERATURES = ("trainer.temperature", "rollout.temperature")


@rule("PAR029", "other-distribution", severity="error", on="rollouts", when=lambda evidence: evidence.has_both_sides)
def check(evidence: RolloutEvidence) -> Iterator[Problem]:
    yield from _find_other_job(evidence)
    fit, metadata = evidence.temperature_fit, evidence.rollouts.metadata
    if fit is None and metadata.logprobs == "unknown":
        raise Skip(
            "the file lacks top-k or full-vocabulary logprobs of both sides, which a fit of the temperature needs, and does"
            " not record whether the engine's logprobs are raw or processed"
        )
    if metadata.logprobs == "processed":
        yield from _find_filters(evidence)
    sampling_temperature = metadata.sampling.temperature
    if fit is not None and abs(fit.temperature - 1) > 0.02 and fit.after < fit.before / 2:
        clause = f"; the sampling temperature was {sampling_temperature:g}" if sampling_temperature is not None else ""
        yield evidence.problem(
            f"a temperature of {fit.temperature:.4g} on the trainer's side closes the gap from {fit.before:.3g} to"
            f" {fit.after:.3g} nats{clause}",
            "engine.logprobs",
            *TEMPERATURES,
            hint="take logprobs of the same distribution on both sides: raw, or processed",
        )
        return
    trainer_temperature = metadata.trainer.temperature if metadata.trainer is not None else None
    if metadata.logprobs == "unknown" or sampling_temperature is None or trainer_temperature is None:
        return
    engine_temperature = sampling_temperature if metadata.logprobs == "processed" else 1.0
    if abs(engine_temperature - trainer_temperature) > 1e-6:
        yield evidence.problem(
            f"the engine's logprobs are {metadata.logprobs}, taken at temperature {engine_temperature:g}, and the trainer"
            f" divides by {trainer_temperature:g}",
            *TEMPERATURES,
            "engine.logprobs",
            hint="take logprobs of the same distribution on both sides",
        )


def _find_other_job(evidence: RolloutEvidence) -> Iterator[Problem]:
    """Yield a problem where the file records that it was sampled in another way than the job says."""
    if evidence.job is None:
        return
    sampling = evidence.rollouts.metadata.sampling
    for name in ("temperature", "top_p", "top_k"):
        said, recorded = evidence.job.number(f"rollout.{name}"), getattr(sampling, name)
        is_off = name == "top_k" and (said or 0) <= 0 and (recorded or 0) <= 0
        if said is not None and recorded is not None and abs(said - recorded) > 1e-6 and not is_off:
            yield evidence.problem(
                f"the file records a {name} of {recorded:g}, and the job says {evidence.job.describe(f'rollout.{name}')}",
                f"rollout.{name}",
                hint="name the job that drew these rollouts; if it is this one, find what else sets the sampling of its engine",
                severity="warning",
            )


def _find_filters(evidence: RolloutEvidence) -> Iterator[Problem]:
    """Yield a problem for truncation and one for penalties that processed logprobs contain."""
    sampling = evidence.rollouts.metadata.sampling
    is_cut = (sampling.top_p is not None and sampling.top_p < 1) or (sampling.top_k or 0) > 0
    if is_cut and not (evidence.job is not None and evidence.job.flag("trainer.filters")):
        yield evidence.problem(
            "the engine reports processed logprobs of a distribution truncated by top-p or top-k, which no trainer computes",
            "rollout.top_k" if (sampling.top_k or 0) > 0 else "rollout.top_p",
            hint="sample with top_p 1 and top_k off, or take raw logprobs",
        )
    penalties = [
        name
        for name, value in (
            ("presence", sampling.presence_penalty or 0.0),
            ("frequency", sampling.frequency_penalty or 0.0),
            ("repetition", 0.0 if sampling.repetition_penalty is None else sampling.repetition_penalty - 1.0),
        )
        if value
    ]
    if penalties:
        yield evidence.problem(
            f"the engine reports processed logprobs with a {join_words(penalties)} penalty, which no trainer computes",
            *(f"rollout.{name}_penalty" for name in penalties),
            hint="sample without penalties, or take raw logprobs",
        )
