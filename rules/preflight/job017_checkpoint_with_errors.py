"""A checkpoint that the job names has errors of its own.

## What it checks
ckptcheck scans the checkpoints that the job names and that are on this machine, headers and configs only, and compares their
ignore lists with how the job's engine and trainer read them.

## Why it matters
After hours in a queue the job would load the checkpoint and refuse it, or compute with something else.

## How to fix
Run `ckptcheck scan` on the checkpoint; it shows every finding.

## When it can be wrong
As the rules of `ckptcheck scan`.

## Seen in
slime's debugging guide ("Missing safetensors shards", "MoE router weights become all zeros")
"""

import shlex
from collections.abc import Iterator

from msgspec import structs

from ckptcheck import Problem, Skip, rule
from ckptcheck.jobs.job import Job
from ckptcheck.text.formatting import count


@rule("JOB017", "checkpoint-with-errors", severity="error", on="job", when=lambda job: bool(job.checkpoints))
def check(job: Job) -> Iterator[Problem]:
    reasons = []
    named: set[str] = set()
    for name, checkpoint in job.checkpoints.items():
        if checkpoint.named in named:
            continue
        named.add(checkpoint.named)
        if checkpoint.reason:
            reasons.append(checkpoint.reason)
        if checkpoint.errors:
            first = checkpoint.errors[0]
            place = f"{first.place}: " if first.place else ""
            option = f" --consumers {','.join(checkpoint.consumers)}" if checkpoint.consumers else ""
            problem = job.problem(
                f"{checkpoint.named} has {count(len(checkpoint.errors), 'error')}, the first:"
                f" {first.code} {place}{first.message}",
                at=name,
                hint=f"ckptcheck scan {shlex.quote(checkpoint.path)} --headers-only{option}",
            )
            yield structs.replace(problem, names=first.names)
    if reasons:
        raise Skip("; ".join(dict.fromkeys(reasons)))
