"""The engine agrees with the reference model, and not with the trainer.

## What it checks
After the first step, where the file has logprobs of a reference model: over the first 65,536 tokens, engine and reference model
differ by a third of what engine and trainer do, or less.

## Why it matters
- The engine still has the weights that training began with: updates do not reach it, or it serves the base without the adapter that
  is trained. The run goes on, its rewards look plausible, and no rollout shows what was learned.
- It looks like staleness: KL climbs and ESS falls with every step, however often weights are sent.

## How to fix
Look at what an update sends and where it goes (`ckptcheck refit`). For an adapter: whether the engine has loaded it, and whether
requests name it.

## When it can be wrong
Early in a run the three models are nearly one. Then a fault in the trainer's logprobs alone (dropout, another temperature) looks so
too; the findings beside this one name it. Or the run itself replaces the reference model, and the tokens are as old as it is.

## Seen in
verl-project/verl#7495 (no tensor of the adapter was sent, for two months), radixark/miles#2075 (requests do not name the adapter),
unslothai/unsloth#8701 (the adapter is not attached), modelscope/ms-swift#9855
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.linter.rule import Skip
from ckptcheck.rollouts.rollout_evidence import RolloutEvidence

SAMPLE = 1 << 16
"""Tokens that are looked at: their means are sure to a hundredth."""
LEAST = 256
"""Tokens below which they are not."""
TIMES = 3.0
"""How many times the one gap the other has to be."""
SMALL = 1e-6
"""Nats below which sides agree to rounding in float32."""


@rule(
    "PAR088",
    "unmoved-engine",
    severity="error",
    on="rollouts",
    when=lambda evidence: (
        evidence.has_both_sides
        and "reference_logprobs" in evidence.rollouts
        and evidence.rollouts.metadata.step != 0
        and evidence.rollouts.metadata.sampled_by == "engine"
    ),
)
def check(evidence: RolloutEvidence) -> Iterator[Problem]:
    tokens, to_reference, to_trainer = _measure(evidence)
    if tokens < LEAST:
        raise Skip(f"{tokens} tokens have logprobs of all three models, which is too few")
    if to_trainer <= max(TIMES * to_reference, SMALL):
        return
    if evidence.causes.shifts.shifts:
        return  # The trainer's column is shifted, which is PAR028's.
    job = evidence.job
    trainer = evidence.rollouts.metadata.trainer
    facts = " ".join(f"{key} {value}" for key, value in (trainer.facts if trainer else {}).items()).lower()
    trains_adapter = (job is not None and job.flag("trainer.lora") is True) or "lora" in facts or "adapter" in facts
    clause = ", without the adapter that the job trains" if trains_adapter else ""
    yield evidence.problem(
        f"the engine differs from the reference model by {to_reference:.3g} nats on average, and from the trainer by"
        f" {to_trainer:.3g}: it has the weights of the reference model{clause}, or the trainer's logprobs are not of its weights",
        "trainer.lora" if trains_adapter else "update.transport",
        hint=f"ckptcheck {'refit lora' if trains_adapter else 'refit'} shows what reaches the engine",
    )


def _measure(evidence: RolloutEvidence) -> tuple[int, float, float]:
    """Return (tokens, mean |engine - reference|, mean |engine - trainer|) of the first tokens that all three scored."""
    import numpy as np

    tokens, sums = 0, np.zeros(2)
    for block in evidence.rollouts.blocks():
        indices = np.flatnonzero(block.mask)
        sides = ("engine", "reference", "trainer")
        columns = np.stack([block.column(f"{side}_logprobs")[indices].astype(np.float64) for side in sides])
        columns = columns[:, np.isfinite(columns).all(0)]
        tokens += columns.shape[1]
        sums += np.abs(columns[1:] - columns[0]).sum(1)
        if tokens >= SAMPLE:
            break
    return (tokens, *(sums / max(tokens, 1)).tolist())
