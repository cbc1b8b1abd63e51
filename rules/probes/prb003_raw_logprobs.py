"""The engine reports logprobs of temperature 1 for tokens that it sampled at another temperature.

## What it checks
- The engine samples responses at the temperature of the job (`--temperature`, 0.7 unless given).
- The probe computes three kinds of logprobs from the trainer's logits: raw, divided by the temperature, and truncated by top-k
  and top-p too. It reports which of them the engine returns.
- The engine runs with its own default unless `--switch logprobs=…` sets another mode.
- At temperature 0 or 1 the kinds cannot be told apart, and the rule is skipped.

## Why it matters
vLLM by default (`--logprobs-mode`) reports raw logprobs, from before temperature and filters. slime, verl and NeMo-RL divide the
trainer's logits by the temperature. The ratio of the two is then not an importance ratio, and a clip range hides it.

## How to fix
- Let the engine report processed logprobs: vLLM with `--logprobs-mode processed_logprobs`; SGLang divides by the temperature
  unless SGLANG_RETURN_ORIGINAL_LOGPROB is set.
- Or let the trainer score at temperature 1, or sample at temperature 1.

## When it can be wrong
A trainer that scores at temperature 1 needs raw logprobs. Ignore the rule there.

## Seen in
vime#64; ServiceNow/PipelineRL's migration to vLLM V1; volcengine/verl#4162
"""

from collections.abc import Iterator

from ckptcheck import Problem, Skip, rule
from ckptcheck.live.experiments.probes.semantics import SemanticsResult
from ckptcheck.live.experiments.probes.trace import ProbeTrace, requires_probe


@rule("PRB003", "raw-logprobs", severity="warning", on="probe", when=requires_probe("semantics"))
def check(trace: ProbeTrace) -> Iterator[Problem]:
    result = trace.result_of("semantics", SemanticsResult).own
    temperature = result.sampling.temperature
    if temperature in (0.0, 1.0):
        raise Skip(f"at temperature {temperature:g} raw logprobs and those of the temperature are the same")
    if result.meaning == "raw":
        gap = result.gaps["temperature"]
        yield Problem(
            f"sampled at temperature {temperature:g}, tokens come with the logprobs of temperature 1: a trainer"
            f" that divides its logits by {temperature:g} is off by {gap.mean:.3g} nats a token (mult_prob_error"
            f" {gap.mult_prob_error:.4g})",
            hint="vLLM: --logprobs-mode processed_logprobs (see the rule for SGLang); or score at temperature 1",
        )
