"""A record of sparse attention names positions that a token cannot attend to.

## What it checks
Positions are those of the same sequence, from 0 to the token's own; -1 stands for none. No position stands twice in a row. The
last token of a sequence does not count, because nothing was computed from it.

## Why it matters
A later position is not computed yet: the record counts over a whole batch or a packed sequence, is shifted, or holds what was
left in a buffer. A replay then attends to other sequences, and a position twice counts twice.

## How to fix
Let the engine report positions within the sequence, and record the row of token t at token t.

## When it can be wrong
Slots of a paged cache are no positions: translate them before you record them.

## Seen in
radixark/miles miles/utils/replay_base.py (`replay_indices_are_token_positions`: the trainer adds the start of each packed
sequence)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.rollouts.metrics.indexer_record import find_wrong_position
from ckptcheck.rollouts.rollout_evidence import RolloutEvidence
from ckptcheck.text.formatting import count

KINDS = {
    "later": "a later position than their own, the first {}",
    "negative": "a position below -1, the first {}",
    "double": "a position twice, the first {}",
}


@rule(
    "PAR072",
    "impossible-positions",
    severity="error",
    on="rollouts",
    when=lambda evidence: bool(evidence.indexer_columns),
)
def check(evidence: RolloutEvidence) -> Iterator[Problem]:
    for column in evidence.indexer_columns:
        for kind, text in KINDS.items():
            if (wrong := find_wrong_position(evidence.rollouts, column, kind)) is None:
                continue
            verb = "attends" if wrong.rows == 1 else "attend"
            tokens = f"{count(wrong.rows, 'token')} in {count(wrong.sequences, 'sequence')}"
            yield Problem(
                f"{tokens} {verb} to {text.format(wrong.index)}",
                key=f"{column}, sequence {wrong.sequence}, token {wrong.token}, layer {wrong.layer}",
                hint="record positions within the sequence, the row of each token at that token",
            )
