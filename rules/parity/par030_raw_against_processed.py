"""By their own settings, the two sides take logprobs of different distributions.

## What it checks
- The metadata agree: the temperature that the engine sampled with, whether its logprobs are raw or processed, and the
  temperature by which the trainer divides.
- Processed logprobs do not come from a truncated distribution (top-p, top-k) or one with penalties (presence, frequency,
  repetition), which the trainer does not compute.

## Why it matters
Raw logprobs are those of the model, processed ones those of the distribution that was sampled from. At a temperature other than
1 these are two policies.

## How to fix
- vLLM: `--logprobs-mode`.
- SGLang reports processed logprobs unless a setting says otherwise.
- Trainer: divide by the same temperature as the engine, or not at all.

## When it can be wrong
Metadata can be wrong. Where distributions are recorded, PAR029 measures the temperature.

## Seen in
vllm-project/vime#64 (vLLM raw by default, Megatron with temperature), NeMo-RL#4015
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.linter.rule import Skip
from ckptcheck.rollouts.rollout_evidence import RolloutEvidence
from ckptcheck.text.formatting import join_words


@rule("PAR030", "raw-against-processed", severity="error", on="rollouts", when=lambda evidence: evidence.has_both_sides)
def check(evidence: RolloutEvidence) -> Iterator[Problem]:
    metadata = evidence.rollouts.metadata
    sampling, trainer = metadata.sampling, metadata.trainer
    if metadata.logprobs == "unknown":
        raise Skip("the file does not record whether the engine's logprobs are raw or processed")
    is_truncated = (sampling.top_p is not None and sampling.top_p < 1) or (sampling.top_k or 0) > 0
    if metadata.logprobs == "processed" and is_truncated:
        text = "the engine reports processed logprobs of a distribution truncated by top-p or top-k, which no trainer computes"
        yield Problem(text, hint="sample with top_p 1 and top_k off, or take raw logprobs")
    penalties = [
        name
        for name, value in (
            ("presence", sampling.presence_penalty or 0.0),
            ("frequency", sampling.frequency_penalty or 0.0),
            ("repetition", 0.0 if sampling.repetition_penalty is None else sampling.repetition_penalty - 1.0),
        )
        if value
    ]
    if metadata.logprobs == "processed" and penalties:
        text = (
            f"the engine reports processed logprobs with a {join_words(penalties)} penalty, which no trainer computes"
        )
        yield Problem(text, hint="sample without penalties, or take raw logprobs")
    trainer_temperature = trainer.temperature if trainer is not None else None
    if sampling.temperature is None or trainer_temperature is None:
        return
    engine_temperature = sampling.temperature if metadata.logprobs == "processed" else 1.0
    if abs(engine_temperature - trainer_temperature) > 1e-6:
        text = f"the engine's logprobs are {metadata.logprobs}, taken at temperature {engine_temperature:g}, and the trainer "
        text += f"divides by {trainer_temperature:g}"
        yield Problem(text, hint="take logprobs of the same distribution on both sides")
