"""The engine's logprobs are normalised over the tokens that top-k and top-p keep.

## What it checks
- With the job's top-k and top-p, the probe compares the engine's logprobs with the trainer's logits divided by the temperature,
  truncated in the same order (top-k, then top-p) and normalised again.
- Where the job truncates nothing, the probe asks the engine with top-k 20 and top-p 0.9 all the same. If its logprobs are then
  of the truncated distribution, the rule is skipped, because the job is not affected; otherwise it passes.

## Why it matters
A trainer scores over the whole vocabulary. Every logprob of the engine is then too high by the logarithm of the probability that
is kept, always in one direction, so the mean ratio is below 1 on every token.

## How to fix
Sample with top-p 1 and top-k off in training, as most recipes do, or truncate the trainer's logits in the same way.

## When it can be wrong
A trainer that truncates its logits too (NeMo-RL can) is not affected.

## Seen in
vLLM's documentation of `logprobs_mode`; ServiceNow/PipelineRL's migration to vLLM V1
"""

from collections.abc import Iterator

from ckptcheck import Problem, Skip, rule
from ckptcheck.parity.gap_summary import exceeds_rounding
from ckptcheck.parity.probes.semantics import SemanticsResult, truncates_vocabulary
from ckptcheck.parity.probes.trace import ProbeTrace, requires_probe


@rule("PRB004", "filtered-logprobs", severity="warning", on="probe", when=requires_probe("semantics"))
def check(trace: ProbeTrace) -> Iterator[Problem]:
    semantics = trace.result_of("semantics", SemanticsResult)
    truncated_round = semantics.cut
    if truncated_round.meaning == "processed" and exceeds_rounding(truncated_round.gaps["temperature"], "float32"):
        gap = truncated_round.gaps["temperature"]
        if not truncates_vocabulary(semantics.own.sampling):
            raise Skip(
                "top-p 1 and top-k 0 truncate nothing; with either filter, logprobs would be of the tokens that the filter"
                f" keeps, {gap.mean:.3g} nats a token from a trainer that does not truncate"
            )
        yield Problem(
            f"with top-p {truncated_round.sampling.top_p:g} and top-k {truncated_round.sampling.top_k} the engine normalises"
            f" logprobs over the tokens that the filter keeps: a trainer that does not truncate is off by"
            f" {gap.mean:.3g} nats a token",
            hint="sample with top-p 1 and top-k 0, or have the trainer truncate its logits in the same way",
        )
