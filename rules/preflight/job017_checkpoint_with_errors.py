"""A checkpoint that the job names has errors of its own.

## What it checks
Checkpoints that the job names and that are on this machine are scanned, headers and configs only, and their ignore lists are held
against how the job's engine and trainer read them.

## Why it matters
The job would load it, hours into a queue, and refuse it or compute with something else.

## How to fix
`ckptcheck scan` on it shows all that is wrong.

## When it can be wrong
As the rules of `ckptcheck scan`.

## Seen in
slime's debugging guide ("Missing safetensors shards", "MoE router weights become all zeros")
"""

import shlex
from collections.abc import Iterator

from ckptcheck import Problem, Skip, rule
from ckptcheck.phrase import count
from ckptcheck.preflight.job import Job


@rule("JOB017", "checkpoint-with-errors", severity="error", on="job", when=lambda job: bool(job.checkpoints))
def check(job: Job) -> Iterator[Problem]:
    unseen = []
    for name, named in job.checkpoints.items():
        if named.reason:
            unseen.append(named.reason)
        if named.errors:
            first = named.errors[0]
            place = f"{first.place}: " if first.place else ""
            asked = f" --consumers {','.join(named.consumers)}" if named.consumers else ""
            yield job.problem(
                f"{named.named} has {count(len(named.errors), 'error')}, the first: {first.code} {place}{first.message}",
                at=name,
                hint=f"ckptcheck scan {shlex.quote(named.path)} --headers-only{asked}",
            )
    if unseen:
        raise Skip("; ".join(dict.fromkeys(unseen)))
