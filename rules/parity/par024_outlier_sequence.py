"""A few sequences are outliers while the others agree.

## What it checks
Every sequence with at least 16 compared tokens. It is an outlier if its mean exp|trainer - engine| is above 2
(`--set max-sequence-error`), or if its mean |Δ| is above 0.05 nats and 20 times that of the median sequence.

## Why it matters
- A mean over a batch hides one sequence that an engine with old weights answered, or that came from a stale prefix, after an
  abort, or through a broken expert.
- NeMo-RL's recipes mask such sequences, so the run goes on with the others and hides the cause.

## How to fix
Find out what these sequences have in common: engine, prompt, length, weight version, the moment of an update.

## When it can be wrong
Where all sequences are that bad, PAR020 reports it, and this rule only names the worst.

## Seen in
NeMo-RL#4243 (60 to 71 % of sequences masked at 2), verl#7904 (32 of 52 samples), NeMo-RL diagnostics 2 (above 300, healthy
1.007)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.linter.rule import Skip
from ckptcheck.rollouts.rollout_evidence import RolloutEvidence
from ckptcheck.text.formatting import count

LEAST = 16
"""Fewest compared tokens of a sequence that is judged by itself."""
SMALL = 0.05
FACTOR = 20.0


@rule("PAR024", "outlier-sequence", severity="error", on="rollouts", when=lambda evidence: evidence.has_both_sides)
def check(evidence: RolloutEvidence) -> Iterator[Problem]:
    import numpy as np

    metrics, limit = evidence.metrics, evidence.thresholds.sequence
    judged = np.flatnonzero(metrics.sequence_tokens >= LEAST)
    if not len(judged):
        raise Skip(f"no sequence has {LEAST} compared tokens")
    error, abs_diff = metrics.sequence_error[judged], metrics.sequence_abs[judged]
    median = float(np.median(abs_diff))
    outliers = judged[(error > limit) | ((abs_diff > SMALL) & (abs_diff > FACTOR * median))]
    if len(outliers):
        worst = int(outliers[metrics.sequence_error[outliers].argmax()])
        predicate = "is an outlier" if len(outliers) == 1 else "are outliers"
        text = f"{len(outliers):,} of {count(len(judged), 'sequence')} {predicate}: the worst has a mult_prob_error of "
        text += f"{metrics.sequence_error[worst]:.4g} and a mean |Δ| of {metrics.sequence_abs[worst]:.3g} over "
        text += f"{count(int(metrics.sequence_tokens[worst]), 'token')}, the median sequence a |Δ| of {median:.3g}"
        yield Problem(
            text, key=f"sequence {worst}", hint="find out what they have in common: engine, prompt, length, version"
        )
