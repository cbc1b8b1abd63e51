"""The KL between engine and trainer is above its limit.

## What it checks
The KL by the k3 estimate over the compared tokens and, where full-vocabulary logprobs are recorded, the exact KL in both
directions. Limit: 0.01, `--max-kl`.

## Why it matters
Healthy syncs reach 1e-4 to 1e-3, broken ones 1e-2 and more, up to 5. Importance ratios are clipped, so training goes on and
learns less.

## How to fix
As for PAR020. A KL that is large from the first step on comes from weights or semantics; one that grows comes from syncs.

## When it can be wrong
k3 has a heavy tail: one token that the trainer finds 10 nats likelier adds 22,000 to the sum. PAR024 shows whether it is one
sequence.

## Seen in
sgl-project/sglang#38298 (1.5), prime-rl#2714 (2 to 5), #3543 (0.194)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.rollouts.rollout_evidence import RolloutEvidence
from ckptcheck.rollouts.rollout_queries import describe_staleness
from ckptcheck.text.formatting import count


@rule("PAR021", "diverging-policies", severity="error", on="rollouts", when=lambda evidence: evidence.has_both_sides)
def check(evidence: RolloutEvidence) -> Iterator[Problem]:
    gate, metrics, exact = evidence.thresholds.kl, evidence.metrics, evidence.exact_kl
    if not metrics.k3 <= gate:
        names = ("trainer", "engine") if metrics.sampled_by == "trainer" else ("engine", "trainer")
        text = (
            f"KL({names[0]} ‖ {names[1]}) is {metrics.k3:.3g} nats a token by"
            f" k3{evidence.format_floor_multiple('k3', metrics.k3)}"
        )
        text += f", and the limit is {gate:g}" + describe_staleness(evidence)
        yield Problem(text, hint="ckptcheck refit shows whether the weights are the cause")
    elif exact is not None and not max(exact.engine_trainer, exact.trainer_engine) <= gate:
        text = f"the exact KL is {exact.engine_trainer:.3g} (engine ‖ trainer) and {exact.trainer_engine:.3g} "
        text += "(trainer ‖ engine) nats over "
        text += (
            f"{count(exact.positions, 'position')}, and the limit is {gate:g}, although the sampled tokens"
            f" give {metrics.k3:.3g}"
        )
        yield Problem(text, hint="the sides differ in tokens that were not sampled")
