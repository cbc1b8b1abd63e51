"""Tokenizing the text again gives other tokens than the recorded ones.

## What it checks
With `--checkpoint`: the rule decodes the first 256 sequences and tokenizes the texts again with the checkpoint's tokenizer.json.

## Why it matters
A model may draw the tokens "th" and "e" where the tokenizer writes "the". A job that passes texts from turn to turn, or from the
rollout to the trainer, trains on tokens that the engine did not draw, and that are unlikely for the model.

## How to fix
Pass token ids. If you have only texts, leave these sequences out.

## When it can be wrong
Nothing is wrong as long as no part of the job works with texts; that is why this is an info. A tokenizer that normalises (Unicode
forms, spaces at the beginning) changes texts, which matters only if the job tokenizes again.

## Seen in
THUDM/slime and miles (rollouts keep ids), verl-project/verl#6719 (token in, token out)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.rollouts.rollout_evidence import RolloutEvidence
from ckptcheck.text.formatting import count


@rule(
    "PAR074",
    "other-tokenization",
    severity="info",
    on="rollouts",
    when=lambda evidence: evidence.drawn_by is not None,
)
def check(evidence: RolloutEvidence) -> Iterator[Problem]:
    trip = evidence.round_trip
    if trip.other_tokens:
        first = trip.other_tokens[0]
        text = f"{len(trip.other_tokens):,} of {count(trip.sequences, 'sequence')} "
        text += "has" if len(trip.other_tokens) == 1 else "have"
        text += f" other tokens once the text is tokenized again: {'none' if first.other is None else first.other}"
        text += f" instead of {first.token} in this one"
        hint = "hand token ids from the rollout to the trainer, not texts"
        yield Problem(text, key=f"sequence {first.sequence}, token {first.position}", hint=hint)
