"""Lines of the record are damaged.

## What it checks
- Every line of the record is a sync. A last line that was cut off while it was written is allowed.

## Why it matters
- No other rule sees a sync that is missing from the record.

## How to fix
- The damaged lines cannot be recovered. Write to a disk that is not full, and from one process.

## When it can be wrong
- Somebody may have edited the file by hand.

## Seen in
sgl-project/sglang#19011 (lines of several writers mixed in one JSONL file), hiyouga/LlamaFactory#10715 (a last line of which
half was written)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.runs.history.history import History
from ckptcheck.text.formatting import count, format_ranges


@rule("HIS010", "damaged-record", severity="warning", on="history")
def check(history: History) -> Iterator[Problem]:
    if history.damaged_lines:
        first = min(history.damaged_lines)
        lines = f"{count(len(history.damaged_lines), 'line')} cannot be read: {format_ranges(history.damaged_lines)}"
        yield Problem(
            f"{lines} (line {first}: {history.damaged_lines[first]})",
            hint="the check compared the syncs before and after these lines with each other",
        )
