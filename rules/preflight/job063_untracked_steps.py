"""--load names a folder whose saved steps slime does not see.

## What it checks
slime and miles continue a job only where the folder of `--load` has Megatron's file `latest_checkpointed_iteration.txt`. The rule
reports a folder on this machine that has saved steps (`iter_0000100`) without that file.

## Why it matters
Nothing stops: the job starts anew from `--ref-load` or a Hugging Face checkpoint, with a new optimizer, and may then save over the
old steps.

## How to fix
Write the number of a complete step to that file.

## When it can be wrong
The job is to start anew: leave `--load` out, or `--ignore JOB063`.

## Seen in
THUDM/slime and radixark/miles, `utils/arguments.py` (`latest_checkpointed_iteration.txt`)
"""

from collections.abc import Iterator
from pathlib import Path

from ckptcheck import Problem, rule
from ckptcheck.jobs.job import Job


@rule(
    "JOB063",
    "untracked-steps",
    severity="error",
    on="job",
    when=lambda job: job.framework in ("slime", "miles") and "checkpoint.trainer" in job.checkpoints,
)
def check(job: Job) -> Iterator[Problem]:
    leaf, checkpoint = job["checkpoint.trainer"].leaf, job.checkpoints["checkpoint.trainer"]
    if leaf is None or leaf.key.lstrip("-") != "load" or not checkpoint.untracked_steps:
        return
    steps = checkpoint.untracked_steps
    named = steps[0] if len(steps) == 1 else f"{steps[0]} to {steps[-1]}"
    yield job.problem(
        f"{Path(checkpoint.path).name} has {named} and no latest_checkpointed_iteration.txt:"
        f" {job.framework} silently starts anew instead of continuing",
        at="checkpoint.trainer",
        hint="write the number of a complete step to that file, or leave --load out",
    )
