"""A response goes on after a token that ends it.

## What it checks
Within a response no token is one that ends a response, by generation_config.json or config.json of `--checkpoint`, or by the
file's `stop_tokens`. Tokens outside of the response mask, such as those between the turns of a conversation, do not count. Where
the file says that end tokens were to be ignored, the rule does not apply.

## Why it matters
What follows an end token is text that the model never learned to write there, another turn of a conversation with itself. The
reward judges it, and the trainer learns it.

## How to fix
Give the engine the ids (`stop_token_ids`), or the checkpoint's generation_config.json; `ckptcheck parity probe --only ends` tests
them one by one. Set `ignore_eos` to false.

## When it can be wrong
The file joins several turns and has no response mask. A model may name an end token that also stands between parts of one answer.

## Seen in
PRB001 tests the same in a running engine
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.linter.rule import Skip
from ckptcheck.rollouts.rollout_evidence import RolloutEvidence
from ckptcheck.text.formatting import count


@rule(
    "PAR076",
    "passed-end",
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
    if ends.passed:
        first = ends.passed[0]
        text = f"{len(ends.passed):,} of {count(ends.responses, 'response')} {'goes' if len(ends.passed) == 1 else 'go'} on after a"
        text += f" token that ends one; the first is token {first.token}"
        hint = "give the engine these ids as stop tokens; where several turns are joined, record the response mask"
        yield Problem(text, key=f"sequence {first.sequence}, token {first.position}", hint=hint)
