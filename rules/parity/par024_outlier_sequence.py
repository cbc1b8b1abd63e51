"""A few sequences are far off while the others agree.

## What it checks
mean exp|trainer - engine| of every sequence with at least 16 compared tokens: above 2 (`--max-sequence-error`), or mean |Δ|
above 0.05 nats and 20 times that of the median sequence.

## Why it matters
A mean over a batch hides one sequence that was answered by an engine with old weights, from a stale prefix, after an abort,
or in which one expert is broken. NeMo-RL's recipes mask such sequences, so that the run learns from what is left and nobody
asks.

## How to fix
See what they have in common: engine, prompt, length, weight version, the moment of an update.

## When it can be wrong
Where all sequences are that bad, PAR020 says it, and this rule names the worst.

## Seen in
NeMo-RL#4243 (60 to 71 % of sequences masked at 2), verl#7904 (32 of 52 samples), NeMo-RL diagnostics 2 (above 300, healthy
1.007)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.parity.judged import Judged
from ckptcheck.phrase import count
from ckptcheck.rule import Skip

LEAST = 16
"""Tokens of a sequence that can be judged by itself."""
SMALL = 0.05
FACTOR = 20.0


@rule("PAR024", "outlier-sequence", severity="error", on="rollouts", when=lambda judged: judged.scored)
def check(judged: Judged) -> Iterator[Problem]:
    import numpy as np

    found, limit = judged.gap, judged.gates.sequence
    enough = np.flatnonzero(found.sequence_tokens >= LEAST)
    if not len(enough):
        raise Skip(f"no sequence has {LEAST} compared tokens")
    error, apart = found.sequence_error[enough], found.sequence_abs[enough]
    median = float(np.median(apart))
    off = enough[(error > limit) | ((apart > SMALL) & (apart > FACTOR * median))]
    if len(off):
        worst = int(off[found.sequence_error[off].argmax()])
        are = "is" if len(off) == 1 else "are"
        text = f"{len(off):,} of {count(len(enough), 'sequence')} {are} far off: the worst has a mult_prob_error of "
        text += f"{found.sequence_error[worst]:.4g} and a mean |Δ| of {found.sequence_abs[worst]:.3g} over "
        text += f"{count(int(found.sequence_tokens[worst]), 'token')}, the median sequence a |Δ| of {median:.3g}"
        yield Problem(
            text, key=f"sequence {worst}", hint="see what they have in common: engine, prompt, length, version"
        )
