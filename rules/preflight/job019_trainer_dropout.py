"""The trainer drops activations at random, which the engine never does.

## What it checks
Megatron's --attention-dropout and --hidden-dropout are 0; their default is 0.1.

## Why it matters
Old logprobs are computed without dropout and new ones with it: every ratio is noise, and so is the gap to the engine. Nothing
fails.

## How to fix
`--attention-dropout 0.0 --hidden-dropout 0.0`.

## When it can be wrong
If a wrapper sets both to 0 where this does not look.

## Seen in
slime's launch scripts ("default dropout in megatron is 0.1")
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.preflight.job import Job


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
        job.need(f"trainer.{name}")
        if job.number(f"trainer.{name}"):
            yield job.problem(
                f"--{name.replace('_', '-')} is {job.said(f'trainer.{name}')}: the trainer's logprobs are random",
                at=f"trainer.{name}",
                hint=f"set --{name.replace('_', '-')} 0.0",
            )
