"""The path of recorded rollouts lacks {rollout_id}, or has a place that slime cannot fill.

## What it checks
In jobs of slime and miles: `--save-debug-rollout-data` contains `{rollout_id}`, and it and `--load-debug-rollout-data` contain no
other braces; `--save-debug-train-data` may have `{rank}` too.

## Why it matters
slime fills in the path with `str.format(rollout_id=…)`. Without the place every rollout overwrites the one before it, and only the
last one is left. Another name in braces stops the job when it saves or loads the first rollout.

## How to fix
`--save-debug-rollout-data /your/data_{rollout_id}.pt`. In Python's f-strings write `{{rollout_id}}`.

## When it can be wrong
Only the last rollout is wanted. A path to load that has no place is no finding: each step then trains on the same file, as one
does to compare layouts.

## Seen in
slime docs/en/developer_guide/debug.md (`args.save_debug_rollout_data.format(rollout_id=rollout_id)`)
"""

import string
from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.document import clip
from ckptcheck.jobs.job import Job

FLAGS = {
    "debug.save_rollouts": ("--save-debug-rollout-data", ("rollout_id",)),
    "debug.load_rollouts": ("--load-debug-rollout-data", ("rollout_id",)),
    "debug.save_train": ("--save-debug-train-data", ("rollout_id", "rank")),
}
"""Setting → the flag, and the names that slime fills in."""


@rule(
    "JOB029",
    "debug-path",
    severity="error",
    on="job",
    when=lambda job: any(job[name].status == "set" for name in FLAGS),
)
def check(job: Job) -> Iterator[Problem]:
    job.require_resolved(*FLAGS)
    for name, (flag, known) in FLAGS.items():
        path = job.text(name)
        if path is None:
            continue
        try:
            places = [place for _, place, _, _ in string.Formatter().parse(path) if place is not None]
        except ValueError:
            places = ["{"]
        wrong = next((place for place in places if place not in known), None)
        if wrong is not None:
            filled = " and ".join(f"{{{place}}}" for place in known)
            yield job.problem(
                f"{flag} has {{{clip(wrong, 40)}}}, and slime fills in {filled} only: it stops when it formats the path",
                at=name,
                hint="write {rollout_id}",
            )
        elif "rollout_id" not in places and name != "debug.load_rollouts":
            yield job.problem(
                f"{flag} has no {{rollout_id}}, so that every rollout overwrites the one before it",
                at=name,
                severity="warning",
                hint="add {rollout_id} to the name of the file",
            )
