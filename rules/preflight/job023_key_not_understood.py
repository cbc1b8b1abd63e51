"""There are keys in the parts that are looked at which nobody here knows.

## What it checks
Keys of the rollout and of the engine's arguments are ones that the framework or the engine has, and hold values of the right
kind.

## Why it matters
A misspelt key is ignored by some frameworks, and what it should have set keeps its default. It may also be newer than this
version of ckptcheck; no value is guessed for it, and rules that need it say that they were skipped.

## How to fix
Correct the spelling, or leave it.

## When it can be wrong
For keys of newer versions and of patched frameworks.

## Seen in
Not yet. It keeps this tool from guessing
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.document import clipped
from ckptcheck.preflight.job import Job

MOST = 6
"""Keys that are named; a job of another framework has hundreds."""


@rule("JOB023", "key-not-understood", severity="info", on="job")
def check(job: Job) -> Iterator[Problem]:
    if not job.not_understood:
        return
    parts = []
    for unread in job.not_understood[:MOST]:
        line = f":{unread.leaf.line}" if unread.leaf.line else ""
        place = f" ({unread.leaf.file}{line})" if unread.leaf.file else ""
        why = f": {unread.why}" if unread.why else f": {unread.near} is known" if unread.near else ""
        parts.append(f"{clipped(unread.leaf.key)}{place}{why}")
    rest = len(job.not_understood) - len(parts)
    more = f", and {rest} more" if rest else ""
    first = job.not_understood[0].leaf
    yield Problem(
        f"not understood, and not guessed: {'; '.join(parts)}{more}",
        file=first.file,
        line=first.line if first.file else None,
        hint="correct the spelling where it is one",
    )
