"""A recorded distribution is none, or belongs to another token.

## What it checks
Of each side by itself, where it recorded logprobs of the whole vocabulary or of its top k:

- The logarithm of the sum of all probabilities is 0 over the vocabulary, and at most 0 over the top k. The rule allows 0.01.
- No row has NaN, or no number at all.
- Where the top k lists the drawn token, its logprob there is that of the column of logprobs, for half of at least 16 such tokens.
  The rule allows 0.01 nats.

## Why it matters
The column holds logits in place of logprobs, a slice of the vocabulary (one tensor-parallel rank's part), padding rows that were
counted in, or rows of the token before. A KL or a temperature computed from them means nothing.

## How to fix
Apply log-softmax over the whole vocabulary before recording, and record the row from which the token was drawn.

## When it can be wrong
A sum over 150,000 ids in bfloat16 is off by more than this.

## Seen in
NVIDIA/Megatron-LM#7452 (logits that were gathered already, normalized once more over the ranks: every logprob is off by the
logarithm of the number of ranks), huggingface/trl#6789 (logprobs over what top-p left, against those over the whole vocabulary)
"""

from collections.abc import Iterator
from math import inf

from ckptcheck import Problem, rule
from ckptcheck.rollouts.metrics.distribution import compare_drawn_tokens, measure_mass
from ckptcheck.rollouts.rollout_evidence import RolloutEvidence
from ckptcheck.text.formatting import count

TOLERANCE = 0.01
LEAST = 16
"""Drawn tokens in the top k below which differences may be chance."""


@rule(
    "PAR032",
    "unnormalized-distribution",
    severity="error",
    on="rollouts",
    when=lambda evidence: any(name.endswith(("_full_logprobs", "_top_logprobs")) for name in evidence.rollouts.columns),
)
def check(evidence: RolloutEvidence) -> Iterator[Problem]:
    columns = evidence.rollouts.columns
    for side in ("engine", "trainer"):
        problems: list[Problem] = []
        for kind, ids in (("full", None), ("top", columns.get(f"{side}_top_ids"))):
            if (name := f"{side}_{kind}_logprobs") in columns:
                problems += _check_mass(name, measure_mass(columns[name], ids), is_whole=ids is None)
        if not problems and {f"{side}_logprobs", f"{side}_top_logprobs"} <= columns.keys():
            problems += _check_drawn_tokens(evidence, side)
        yield from problems


def _check_mass(name: str, mass: tuple[float, float], *, is_whole: bool) -> Iterator[Problem]:
    """mass: the smallest and the largest log Σ e^x of a position."""
    least, most = mass
    if inf in (most, -least):
        yield Problem(
            "the logprobs of a position contain NaN, or no number at all", key=name, hint="look at what recorded them"
        )
    elif most > TOLERANCE or (is_whole and least < -TOLERANCE):
        worst = most if not is_whole or most > -least else least
        yield Problem(
            f"the probabilities of one position add up to e^{worst:.4g}, and not to {'1' if is_whole else 'at most 1'}",
            key=name,
            hint="these are logits, or a part of the vocabulary: apply log-softmax over all of it",
        )


def _check_drawn_tokens(evidence: RolloutEvidence, side: str) -> Iterator[Problem]:
    differences = compare_drawn_tokens(evidence.rollouts, side)
    other = int((~(differences <= TOLERANCE)).sum())
    if len(differences) >= LEAST and 2 * other > len(differences):
        yield Problem(
            f"the top k lists the drawn token in {count(len(differences), 'row')}, and in {other:,} of them with another logprob"
            f" than {side}_logprobs has",
            key=f"{side}_top_logprobs",
            hint="record the row from which the token was drawn, and logprobs of one kind: raw or processed",
        )
