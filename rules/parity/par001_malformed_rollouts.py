"""The columns of the file do not fit together.

## What it checks
- Header, metadata, dtypes and shapes are as the format demands.
- Sequences follow each other without a gap, prompts lie within their sequences, and spans of weight versions do not overlap.
- In JSON lines, ids are whole numbers: `"5"`, `5.5` and `true` are not.

## Why it matters
Offsets that are off by one pair every logprob with another token. What is computed from them looks like a bad sync.

## How to fix
Write the file again, or convert the framework's own file with `ckptcheck parity convert`.

## When it can be wrong
- The rule checks only the form. A file in which every logprob is shifted by one token, or every mask belongs to another
  sequence, passes; PAR028 and PAR007 find such mistakes.
- A file that is still being written has no complete header yet; judge it again when it is done.

## Seen in
THUDM/slime#1440 (a loss mask shorter than the response), THUDM/slime#1862 (812 logprobs for a response of 456 tokens)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.rollouts.rollout_evidence import RolloutEvidence


@rule("PAR001", "malformed-rollouts", severity="error", on="columns")
def check(evidence: RolloutEvidence) -> Iterator[Problem]:
    for defect in evidence.rollouts.defects:
        yield Problem(
            defect.text,
            evidence.rollouts.name or None,
            defect.key,
            "write the file again; convert the dump of a framework first: ckptcheck parity convert",
        )
