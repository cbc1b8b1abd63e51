"""The two sides take logprobs of different distributions, by their own settings.

## What it checks
What the metadata say: the temperature that the engine sampled with, whether its logprobs are raw or processed, and the
temperature by which the trainer divides. And whether processed logprobs are of a nucleus (top-p, top-k) that the trainer
does not know.

## Why it matters
Raw logprobs are of the model, processed ones of what was sampled from. At a temperature other than 1 these are two
policies.

## How to fix
vLLM: `--logprobs-mode`. SGLang: it reports processed ones unless it is told otherwise. Trainer: divide by the same
temperature, or not.

## When it can be wrong
Metadata can be wrong; where distributions are recorded, PAR029 measures it.

## Seen in
vllm-project/vime#64 (vLLM raw by default, Megatron with temperature), NeMo-RL#4015
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.parity.judged import Judged
from ckptcheck.rule import Skip


@rule("PAR030", "raw-against-processed", severity="error", on="rollouts", when=lambda judged: judged.scored)
def check(judged: Judged) -> Iterator[Problem]:
    about = judged.rollouts.metadata
    sampling, trainer = about.sampling, about.trainer
    if about.logprobs == "unknown":
        raise Skip("whether the engine's logprobs are raw or processed is not recorded")
    nucleus = (sampling.top_p is not None and sampling.top_p < 1) or (sampling.top_k or 0) > 0
    if about.logprobs == "processed" and nucleus:
        text = "the engine reports processed logprobs of a distribution cut off by top-p or top-k, which no trainer computes"
        yield Problem(text, hint="sample with top_p 1 and top_k off, or take raw logprobs")
    own = trainer.temperature if trainer is not None else None
    if sampling.temperature is None or own is None:
        return
    engine = sampling.temperature if about.logprobs == "processed" else 1.0
    if abs(engine - own) > 1e-6:
        text = f"the engine's logprobs are {about.logprobs}, so of temperature {engine:g}, and the trainer divides by {own:g}"
        yield Problem(text, hint="let both sides take logprobs of the same distribution")
