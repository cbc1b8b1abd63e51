"""All logprobs of a sequence are the same number.

## What it checks
In every sequence of at least 8 compared tokens, neither side gives all tokens the same logprob, as a column of zeros does.

## Why it matters
A placeholder compares like a number. Against zeros the gap is the entropy of the model. If both sides hold the same placeholder
the gap is 0, and everything passes.

## How to fix
Request logprobs from the engine (`logprobs=0` in vLLM, `return_logprob` in SGLang), and let the trainer score what it skips now.

## When it can be wrong
A greedy engine that reports processed logprobs gives 0 for every token. Where the temperature is 0, the rule therefore checks
only the trainer.

## Seen in
NeMo-RL with force_on_policy_ratio skips the forward pass and reports placeholders; verl#7196: bypass mode removes the
metrics where the gap is largest
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.rollouts.rollout_evidence import RolloutEvidence
from ckptcheck.rollouts.rollout_queries import describe_logprob_column, list_logprob_columns
from ckptcheck.text.formatting import count

LEAST = 8
"""Fewest compared tokens of a sequence in which equal logprobs are no coincidence."""


@rule("PAR009", "placeholder-logprobs", severity="error", on="rollouts", when=lambda evidence: evidence.is_well_formed)
def check(evidence: RolloutEvidence) -> Iterator[Problem]:
    import numpy as np

    is_greedy = evidence.rollouts.metadata.sampling.temperature == 0
    for column in list_logprob_columns(evidence):
        if is_greedy and column == "engine_logprobs":
            continue
        constant_sequences = []
        for block in evidence.rollouts.blocks():
            indices = np.flatnonzero(block.mask)
            values, owners = block.column(column)[indices], block.owners[indices]
            begins = np.flatnonzero(np.diff(owners, prepend=-1))
            if not len(begins):
                continue
            lengths = np.diff(begins, append=len(indices))
            is_constant = np.minimum.reduceat(values, begins) == np.maximum.reduceat(values, begins)
            constant_begins = begins[is_constant & (lengths >= LEAST)].tolist()
            constant_sequences += [(int(owners[begin]), float(values[begin])) for begin in constant_begins]
        if constant_sequences:
            sequence, value = constant_sequences[0]
            text = f"{count(len(constant_sequences), 'sequence')} of {evidence.rollouts.sequence_count:,}: "
            text += f"{describe_logprob_column(column)} is {value:g} for every token"
            yield Problem(
                text,
                key=f"{column}, sequence {sequence}",
                hint="ask the engine for logprobs, and let the trainer score",
            )
