"""Sparse attention of the trainer sees other positions than that of the engine.

## What it checks
If both sides recorded the positions that the indexers of sparse attention chose, the rule compares the sets layer by layer. A token
differs if the trainer has less than 80 % of the engine's positions in some layer; the rule reports more than 1 % of such tokens.
Both numbers are from miles' check of a replay.

## Why it matters
A token that attends to other positions has another logprob. The positions at the edge of the top k change with the last bits of
the scores, but a fifth of them do not.

## How to fix
Replay the engine's positions in the trainer, or compute the indexer in the same dtype and with the same rotation on both sides.

## When it can be wrong
Scores that are almost equal over long stretches (padding, repeated text) leave the choice to rounding.

## Seen in
radixark/miles miles/utils/replay_base.py (`IndexerReplayManager`, `--use-rollout-indexer-replay`)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.linter.rule import Skip
from ckptcheck.rollouts.rollout_evidence import RolloutEvidence
from ckptcheck.text.formatting import count

SHARE = 0.01


@rule(
    "PAR071",
    "other-positions",
    severity="warning",
    on="rollouts",
    when=lambda evidence: bool(evidence.indexer_columns),
)
def check(evidence: RolloutEvidence) -> Iterator[Problem]:
    agreement = evidence.indexer_agreement
    if agreement is None:
        raise Skip("the file lacks the positions of both sides for the same layers")
    if agreement.first is not None and agreement.other > SHARE * agreement.rows:
        sequence, token, layer = agreement.first
        worst = int(agreement.overlap.argmin())
        text = (
            f"{agreement.other:,} of {count(agreement.rows, 'token')} attend to other positions; in layer {worst} the"
        )
        text += f" trainer has {agreement.overlap[worst]:.0%} of the engine's positions, on average"
        hint = "replay the engine's positions, or compute the indexer alike on both sides"
        yield Problem(text, key=f"sequence {sequence}, token {token}, layer {layer}", hint=hint)
