"""A path that the job reads is not on this machine, or one that it writes to cannot be written.

## What it checks
With `--here`: checkpoints and data files that the job names by a path exist and can be read; the folders for checkpoints and
weight updates can be written, or made. Names of repositories (`org/model`) and addresses (`s3://…`) are left alone.

## Why it matters
A path with a typing error stops the job after the queue and the start of Ray; for transformers it is the name of a repository,
and the message is then about the Hub. A folder that cannot be written is found out at the first save.

## How to fix
Correct the path, or mount what it needs.

## When it can be wrong
The job runs in a container, or on another machine, that has other paths: leave `--here` out, or run it there.

## Seen in
verl-project/verl#3048 (transformers: "Repo id must be in the form 'repo_name' or 'namespace/repo_name'", of a path that does
not exist
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.document import clip
from ckptcheck.jobs.job import Job

WHAT = {
    "model": "the checkpoint",
    "data": "the data file",
    "save": "the folder for checkpoints,",
    "update": "the folder for weight updates,",
}


@rule(
    "JOB057",
    "path-not-here",
    severity="error",
    on="job",
    when=lambda job: job.machine is not None and bool(job.machine.paths),
)
def check(job: Job) -> Iterator[Problem]:
    assert job.machine is not None
    for path in job.machine.paths:
        if path.trouble:
            comma = "," if WHAT[path.use].endswith(",") else ""
            yield job.problem_at(
                path.leaf,
                f"{WHAT[path.use]} {clip(path.named)}{comma} {path.trouble} on this machine"
                if path.trouble == "does not exist"
                else f"{WHAT[path.use]} {clip(path.named)}{comma} {path.trouble}",
                hint="correct the path"
                if path.use in ("model", "data")
                else "choose a folder that this user can write to",
            )
