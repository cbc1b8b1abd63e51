"""The engine's logprobs are those of a filtered or penalised distribution, which no trainer computes.

## What it checks
- With the job's top-k and top-p, the probe compares the engine's logprobs with the trainer's logits divided by the temperature,
  truncated in the same order (top-k, then top-p) and normalised again.
- Where the job truncates nothing, the probe asks the engine with top-k 20 and top-p 0.9 all the same. If its logprobs are then
  of the truncated distribution, the rule is skipped, because the job is not affected; otherwise it passes.
- The same with a presence and a frequency penalty, which processed logprobs contain too.

## Why it matters
A trainer scores over the whole vocabulary. Every logprob of the engine is then too high by the logarithm of the probability that
is kept, always in one direction, so the mean ratio is below 1 on every token. With penalties it is off at every token that the
response repeats, or could have.

## How to fix
Sample with top-p 1, top-k off and no penalties in training, as most recipes do, or truncate the trainer's logits in the same way.

## When it can be wrong
A trainer that truncates its logits too (NeMo-RL can) is not affected.

## Seen in
vLLM's documentation of `logprobs_mode`; ServiceNow/PipelineRL's migration to vLLM V1
"""

from collections.abc import Iterator

from ckptcheck import Problem, Skip, rule
from ckptcheck.live.experiments.probes.semantics import (
    SemanticsResult,
    SemanticsRound,
    has_penalties,
    truncates_vocabulary,
)
from ckptcheck.live.experiments.probes.trace import ProbeTrace, requires_probe
from ckptcheck.rollouts.gap_summary import exceeds_rounding


@rule("PRB004", "filtered-logprobs", severity="warning", on="probe", when=requires_probe("semantics"))
def check(trace: ProbeTrace) -> Iterator[Problem]:
    semantics = trace.result_of("semantics", SemanticsResult)
    penalized_round = semantics.penalized
    if has_penalties(semantics.own.sampling) and _is_processed(penalized_round):
        yield Problem(
            f"at {penalized_round.sampling_label} the engine's logprobs contain the penalties: a trainer that does not penalise is"
            f" off by {penalized_round.gaps['temperature'].mean:.3g} nats a token",
            hint="sample without penalties in training",
        )
        return
    truncated_round = semantics.cut
    if _is_processed(truncated_round):
        gap = truncated_round.gaps["temperature"]
        if not truncates_vocabulary(semantics.own.sampling):
            raise Skip(
                "top-p 1 and top-k 0 truncate nothing; with either filter, logprobs would be of the tokens that the filter"
                f" keeps, {gap.mean:.3g} nats a token from a trainer that does not truncate"
                + (
                    f"; with penalties, {penalized_round.gaps['temperature'].mean:.3g}"
                    if _is_processed(penalized_round)
                    else ""
                )
            )
        yield Problem(
            f"with top-p {truncated_round.sampling.top_p:g} and top-k {truncated_round.sampling.top_k} the engine normalises"
            f" logprobs over the tokens that the filter keeps: a trainer that does not truncate is off by"
            f" {gap.mean:.3g} nats a token",
            hint="sample with top-p 1 and top-k 0, or have the trainer truncate its logits in the same way",
        )


def _is_processed(semantics_round: SemanticsRound) -> bool:
    """Whether the engine's logprobs are those after filters and penalties, and these change them."""
    return semantics_round.meaning == "processed" and exceeds_rounding(semantics_round.gaps["temperature"], "float32")
