"""The columns of the file do not fit together.

## What it checks
Header, metadata, dtypes and shapes; that sequences follow each other without gap, prompts lie within their sequences, and
spans of weight versions do not overlap. In JSON lines ids have to be whole numbers: `"5"`, `5.5` and `true` are none.

## Why it matters
Offsets that are off by one pair every logprob with another token. What is computed from them looks like a bad sync.

## How to fix
Write the file again, or convert the framework's own file with `ckptcheck parity convert`.

## When it can be wrong
It looks at form only. A file in which every logprob is moved by one token, or every mask is another sequence's, fits
together and passes: PAR028 and PAR007 see such slips. A file that is still being written has no whole header yet;
judge it again when it is done.

## Seen in
files that were cut off while they were copied
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.parity.judged import Judged


@rule("PAR001", "malformed-rollouts", severity="error", on="rollouts")
def check(judged: Judged) -> Iterator[Problem]:
    for defect in judged.rollouts.defects:
        yield Problem(
            defect.text,
            judged.rollouts.name or None,
            defect.key,
            "write the file again, or convert what a framework wrote (ckptcheck parity convert)",
        )
