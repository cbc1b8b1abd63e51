"""The trainer applies dropout, which the engine never does.

## What it checks
Megatron's --attention-dropout and --hidden-dropout are 0; their default is 0.1.

## Why it matters
The trainer computes old logprobs without dropout and new ones with it. Every ratio is noise, and so is the gap to the engine.
No error is raised.

## How to fix
`--attention-dropout 0.0 --hidden-dropout 0.0`.

## When it can be wrong
A wrapper sets both to 0 in a place that this rule does not read.

## Seen in
slime's launch scripts ("default dropout in megatron is 0.1")
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.jobs.job import Job


@rule(
    "JOB019",
    "trainer-dropout",
    severity="error",
    on="job",
    when=lambda job: (
        job["trainer.attention_dropout"].status != "unknown" or job["trainer.hidden_dropout"].status != "unknown"
    ),
)
def check(job: Job) -> Iterator[Problem]:
    for name in ("attention_dropout", "hidden_dropout"):
        job.require_resolved(f"trainer.{name}")
        if job.number(f"trainer.{name}"):
            yield job.problem(
                f"--{name.replace('_', '-')} is {job.describe(f'trainer.{name}')}: the trainer's logprobs are random",
                at=f"trainer.{name}",
                hint=f"set --{name.replace('_', '-')} 0.0",
            )
