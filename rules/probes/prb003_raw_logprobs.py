"""The engine reports logprobs of temperature 1 for tokens that it sampled at another.

## What it checks
Responses are sampled at the temperature of the job (`--temperature`, 0.7 unless given). From the trainer's logits the logprobs
are computed as raw ones, divided by the temperature, and cut by top-k and top-p too: which is it that the engine reports? It is
asked as it comes, unless `--switch logprobs=…` sets it; at temperature 0 or 1 nothing can be told apart, and the rule is skipped.

## Why it matters
vLLM reports raw logprobs by default (`--logprobs-mode`), before temperature and filters. slime, verl and NeMo-RL divide the
trainer's logits by the temperature. The ratio of the two is then no importance ratio, and a clip range hides it.

## How to fix
Have the engine report processed logprobs (vLLM `--logprobs-mode processed_logprobs`; SGLang divides by the
temperature, unless SGLANG_RETURN_ORIGINAL_LOGPROB is set), or have the trainer score at temperature 1, or sample at temperature 1.

## When it can be wrong
A trainer that scores at temperature 1 wants raw logprobs. Ignore the rule there.

## Seen in
vime#64; ServiceNow/PipelineRL's migration to vLLM V1; volcengine/verl#4162
"""

from collections.abc import Iterator

from ckptcheck import Problem, Skip, rule
from ckptcheck.parity.probes.semantics import SemanticsSeen
from ckptcheck.parity.probes.trace import ProbeTrace, asked


@rule("PRB003", "raw-logprobs", severity="warning", on="probe", when=asked("semantics"))
def check(trace: ProbeTrace) -> Iterator[Problem]:
    seen = trace.of("semantics", SemanticsSeen).own
    heat = seen.sampling.temperature
    if heat in (0.0, 1.0):
        raise Skip(f"at temperature {heat:g} raw logprobs and those of the temperature are the same")
    if seen.meaning == "raw":
        gap = seen.gaps["temperature"]
        yield Problem(
            f"sampled at temperature {heat:g}, tokens come with the logprobs of temperature 1: a trainer that"
            f" divides its logits by"
            f" {heat:g} is off by {gap.mean:.3g} nats a token (mult_prob_error {gap.mult_prob_error:.4g})",
            hint="vLLM: --logprobs-mode processed_logprobs (see the rule for SGLang); or score at temperature 1",
        )
