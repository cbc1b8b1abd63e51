"""The engine reports logprobs of what top-k and top-p left, and trainers know nothing of either.

## What it checks
With the job's top-k and top-p, the engine's logprobs fit those of the trainer's logits divided by the temperature, cut in the
same order (top-k, then top-p) and normalised again. Where the job cuts nothing the engine is asked with top-k 20 and top-p 0.9 all
the same: it passes if its logprobs are not of what they leave, and if they are the rule is skipped, for the job is not hurt.

## Why it matters
A trainer scores over the whole vocabulary. Every logprob of the engine is then too high by the logarithm of what was cut
away, in one direction, so that the mean ratio is below 1 on every token.

## How to fix
Sample with top-p 1 and top-k off in training, as most recipes do, or cut the trainer's logits in the same way.

## When it can be wrong
A trainer that cuts its logits too (NeMo-RL can) is not concerned.

## Seen in
vLLM's documentation of `logprobs_mode`; ServiceNow/PipelineRL's migration to vLLM V1
"""

from collections.abc import Iterator

from ckptcheck import Problem, Skip, rule
from ckptcheck.parity.probes.limits import apart
from ckptcheck.parity.probes.semantics import SemanticsSeen, cuts
from ckptcheck.parity.probes.trace import ProbeTrace, asked


@rule("PRB004", "filtered-logprobs", severity="warning", on="probe", when=asked("semantics"))
def check(trace: ProbeTrace) -> Iterator[Problem]:
    both = trace.of("semantics", SemanticsSeen)
    seen = both.cut
    if seen.meaning == "processed" and apart(seen.gaps["temperature"], "float32"):
        gap = seen.gaps["temperature"]
        if not cuts(both.own.sampling):
            raise Skip(
                "nothing is cut at top-p 1 and top-k 0; with either, logprobs would be of what is left,"
                f" {gap.mean:.3g} nats a token from a trainer that does not cut"
            )
        yield Problem(
            f"with top-p {seen.sampling.top_p:g} and top-k {seen.sampling.top_k} logprobs are of the tokens that"
            f" were left, made to sum"
            f" to 1 again: a trainer that does not cut is off by {gap.mean:.3g} nats a token",
            hint="sample with top-p 1 and top-k 0, or have the trainer cut its logits in the same way",
        )
