"""The engine's logprobs are of another distribution than the one a trainer computes.

## What it checks
- The engine samples responses at the sampling of the job (`--temperature`, 0.7 unless given, top-k, top-p and penalties). The
  probe computes three kinds of logprobs from the trainer's logits: raw, divided by the temperature, and truncated by top-k, then
  top-p, and normalised again. It reports which of them the engine returns.
- The engine runs with its own default unless `--switch logprobs=…` sets another mode.
- Processed logprobs contain presence, frequency and repetition penalties too.
- A job that truncates nothing, or samples at temperature 0 or 1, is not affected, and passes.

## Why it matters
- vLLM by default (`--logprobs-mode`) reports raw logprobs, from before temperature and filters. slime, verl and NeMo-RL divide the
  trainer's logits by the temperature. The ratio of the two is then not an importance ratio, and a clip range hides it.
- A trainer scores over the whole vocabulary. Every logprob of a truncated distribution is too high by the logarithm of the
  probability that is kept, always in one direction, so the mean ratio is below 1 on every token. With penalties it is off at every
  token that the response repeats, or could have.

## How to fix
- Raw: let the engine report processed logprobs: vLLM with `--logprobs-mode processed_logprobs`; SGLang divides by the temperature
  unless SGLANG_RETURN_ORIGINAL_LOGPROB is set. Or score, or sample, at temperature 1.
- Filtered or penalised: sample with top-p 1, top-k off and no penalties in training, as most recipes do, or truncate the trainer's
  logits in the same way.

## When it can be wrong
A trainer that scores at temperature 1 needs raw logprobs, and one that truncates its logits too (NeMo-RL can) needs truncated
ones. Ignore the rule there.

## Seen in
vime#64; ServiceNow/PipelineRL's migration to vLLM V1; volcengine/verl#4162; vLLM's documentation of `logprobs_mode`
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.live.experiments.probes.semantics import (
    SemanticsResult,
    has_penalties,
    truncates_vocabulary,
)
from ckptcheck.live.experiments.probes.trace import ProbeTrace, requires_probe
from ckptcheck.rollouts.gap_summary import exceeds_rounding


@rule("PRB003", "other-distribution", severity="warning", on="probe", when=requires_probe("semantics"))
def check(trace: ProbeTrace) -> Iterator[Problem]:
    semantics = trace.result_of("semantics", SemanticsResult)
    sampling = semantics.sampling
    if semantics.meaning == "raw" and sampling.temperature not in (0.0, 1.0):
        gap = semantics.gaps["temperature"]
        yield Problem(
            f"sampled at temperature {sampling.temperature:g}, tokens come with the logprobs of temperature 1: a trainer"
            f" that divides its logits by {sampling.temperature:g} is off by {gap.mean:.3g} nats a token (mult_prob_error"
            f" {gap.mult_prob_error:.4g})",
            hint="vLLM: --logprobs-mode processed_logprobs (see the rule for SGLang); or score at temperature 1",
        )
    if has_penalties(sampling) and _is_processed(semantics):
        yield Problem(
            f"at {semantics.sampling_label} the engine's logprobs contain the penalties: a trainer that does not penalise is"
            f" off by {semantics.gaps['temperature'].mean:.3g} nats a token",
            hint="sample without penalties in training",
        )
    elif truncates_vocabulary(sampling) and _is_processed(semantics):
        yield Problem(
            f"with top-p {sampling.top_p:g} and top-k {sampling.top_k} the engine normalises"
            f" logprobs over the tokens that the filter keeps: a trainer that does not truncate is off by"
            f" {semantics.gaps['temperature'].mean:.3g} nats a token",
            hint="sample with top-p 1 and top-k 0, or have the trainer truncate its logits in the same way",
        )


def _is_processed(result: SemanticsResult) -> bool:
    """Whether the engine's logprobs are those after filters and penalties, and these change them."""
    return result.meaning == "processed" and exceeds_rounding(result.gaps["temperature"], "float32")
