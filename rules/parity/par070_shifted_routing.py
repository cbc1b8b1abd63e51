"""The routing of engine and trainer agrees only when one is shifted by layers or by a token.

## What it checks
Where both sides recorded routing: the share of equal sets of experts as recorded, and with the trainer's rows moved by up to 3
layers or by one token. The rule reports a shift with which half of the sets are equal, and three times as many as without it.

## Why it matters
Replayed like this, each layer gets the experts that another layer chose, or each token those of its neighbour. Layers shift where
one side counts dense layers or a layer of multi-token prediction and the other does not; tokens shift where one side drops the row
of the first token instead of the last.

## How to fix
Count layers alike on both sides, and give token t the row of token t.

## When it can be wrong
Sequences of one repeated token have equal rows at neighbouring tokens.

## Seen in
THUDM/slime slime/backends/megatron_utils/actor.py (`fill_routing_replay` takes row l for layer l, dense ones counted),
NovaSky-AI/SkyRL#1908 (metadata and padding out of line)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.linter.rule import Skip
from ckptcheck.rollouts.rollout_evidence import RolloutEvidence
from ckptcheck.text.formatting import count

LEAST, TIMES = 0.5, 3.0


@rule(
    "PAR070",
    "shifted-routing",
    severity="error",
    on="rollouts",
    when=lambda evidence: len(evidence.routing_records) > 1,
)
def check(evidence: RolloutEvidence) -> Iterator[Problem]:
    shift = evidence.routing_shift
    if shift is None:
        raise Skip("the two sides recorded different numbers of experts for a token")
    if shift.agreement < LEAST or shift.agreement < TIMES * shift.unshifted:
        return
    by = shift.layers or shift.tokens
    what = "layer" if shift.layers else "token"
    text = f"{shift.agreement:.0%} of the sets of experts are equal when the trainer's {what} 0 is the engine's {what} {by}"
    if by < 0:
        text = f"{shift.agreement:.0%} of the sets of experts are equal when the trainer's {what} {-by} is the engine's {what} 0"
    text += f", and {shift.unshifted:.0%} as recorded: one side is shifted by {count(abs(by), what)}"
    yield Problem(text, key="trainer_routing", hint=f"count {what}s alike on both sides")
