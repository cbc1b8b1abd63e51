"""Responses end neither by a token that ends them nor by their length.

## What it checks
The last token of each response is one that ends responses (by `--checkpoint` or the file's `stop_tokens`), or the response has
`max_tokens` tokens or reaches `max_model_len`, or its finish reason says length or abort. Without `max_tokens`, the greatest
length that two responses share counts as the limit.

## Why it matters
An answer that was cut off looks like a finished one to the reward. Where all of them end with one other token, the engine stops
at an id that the checkpoint does not name: it was started with another tokenizer or generation config, or the end token was
dropped from the record, and the trainer never learns to end.

## How to fix
Compare the engine's stop tokens with generation_config.json, and see whether the record drops the last token. If you stop at texts
(`stop=["</answer>"]`), ignore this.

## When it can be wrong
Texts that end a response (`stop`) and calls of tools end it at ordinary tokens. They have the finish reason stop, and the rule
then reports no more than an info.

## Seen in
PRB001 tests the engine's end tokens one by one
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.linter.rule import Skip
from ckptcheck.rollouts.rollout_evidence import RolloutEvidence
from ckptcheck.text.formatting import count


@rule(
    "PAR077",
    "unexplained-end",
    severity="warning",
    on="rollouts",
    when=lambda evidence: (
        evidence.is_well_formed and bool(evidence.stop_tokens) and not evidence.rollouts.metadata.sampling.ignore_eos
    ),
)
def check(evidence: RolloutEvidence) -> Iterator[Problem]:
    ends = evidence.response_ends
    if not ends.responses:
        raise Skip("no response has tokens")
    if not ends.unexplained:
        return
    sequence, last, reason = ends.unexplained[0]
    text = f"{len(ends.unexplained):,} of {count(ends.responses, 'response')} "
    text += "ends" if len(ends.unexplained) == 1 else "end"
    text += " neither by an end token nor by length"
    if (common := ends.common_last_token) is not None:
        text += f"; {common[1]:,} of them end with token {common[0]}, which nothing names as an end"
    else:
        text += f"; the first ends with token {last}"
    if reason:
        text += f" (finish reason {reason})"
    yield Problem(
        text,
        key=f"sequence {sequence}",
        hint="compare the engine's stop tokens and texts with generation_config.json",
        severity="info" if all(word for *_, word in ends.unexplained) else None,
    )
