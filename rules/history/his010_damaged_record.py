"""Lines of the record are damaged.

## What it checks
Every line is a sync, but for a last one that was cut off while it was written.

## Why it matters
A sync that is missing from the record is one that no other rule has looked at.

## How to fix
Nothing can be got back. Write to a disk that is not full, and from one process.

## When it can be wrong
A file that was edited by hand.

## Seen in
Jobs that were killed while another process wrote to the same file
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.history.history import History
from ckptcheck.phrase import count, ranges


@rule("HIS010", "damaged-record", severity="warning", on="history")
def check(history: History) -> Iterator[Problem]:
    if history.damaged:
        first = min(history.damaged)
        lines = f"{count(len(history.damaged), 'line')} cannot be read: {ranges(history.damaged)}"
        yield Problem(
            f"{lines} (line {first}: {history.damaged[first]})",
            hint="the syncs around them were compared with each other",
        )
