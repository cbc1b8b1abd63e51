"""All logprobs of a sequence are one and the same number.

## What it checks
Sequences of at least 8 compared tokens: that neither side gives every token of one the same logprob, as a column of zeros
does.

## Why it matters
A placeholder compares as a number. Against zeros the gap is the entropy of the model; if both sides are the same
placeholder it is 0, and everything passes.

## How to fix
Demand logprobs from the engine (`logprobs=0` in vLLM, `return_logprob` in SGLang), and let the trainer score what it now
skips.

## When it can be wrong
A greedy engine that reports processed logprobs gives 0 for every token; so where the temperature is 0, only the trainer is
looked at.

## Seen in
NeMo-RL with force_on_policy_ratio skips the forward pass and reports placeholders; verl#7196: bypass mode removes the
metrics where the gap is largest
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.parity.judged import Judged
from ckptcheck.parity.judging import logprob_columns, whose
from ckptcheck.phrase import count

LEAST = 8
"""Tokens from which it is no coincidence."""


@rule("PAR009", "placeholder-logprobs", severity="error", on="rollouts", when=lambda judged: judged.sound)
def check(judged: Judged) -> Iterator[Problem]:
    import numpy as np

    cold = judged.rollouts.metadata.sampling.temperature == 0
    for column in logprob_columns(judged):
        if cold and column == "engine_logprobs":
            continue
        found = []
        for block in judged.rollouts.blocks():
            at = np.flatnonzero(block.mask)
            values, owners = block.column(column)[at], block.owners[at]
            begins = np.flatnonzero(np.diff(owners, prepend=-1))
            if not len(begins):
                continue
            number = np.diff(begins, append=len(at))
            flat = np.minimum.reduceat(values, begins) == np.maximum.reduceat(values, begins)
            found += [(int(owners[begin]), float(values[begin])) for begin in begins[flat & (number >= LEAST)].tolist()]
        if found:
            text = f"{count(len(found), 'sequence')} of {judged.rollouts.number:,}: {whose(column)} is "
            text += f"{found[0][1]:g} for every token"
            yield Problem(
                text,
                key=f"{column}, sequence {found[0][0]}",
                hint="ask the engine for logprobs, and let the trainer score",
            )
