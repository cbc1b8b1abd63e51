"""Debugging flags exclude each other, have nothing to work on, or name an unusable path.

## What it checks
In jobs of slime and miles:
- `--debug-rollout-only` starts no trainer, `--debug-train-only` and `--load-debug-rollout-data` start no engine: they exclude
  each other.
- `--debug-rollout-only` needs `--colocate` or `--rollout-num-gpus`, from which slime computes the number of GPUs.
- `--save-debug-train-data` and `--save-debug-rollout-data` do not name the same file.
- `--debug-train-only` has rollouts to train on: `--load-debug-rollout-data`, or a rollout function or loss of the user's that
  needs no engine.
- `--save-debug-rollout-data` contains `{rollout_id}`, and it and `--load-debug-rollout-data` contain no other braces;
  `--save-debug-train-data` may have `{rank}` too.

## Why it matters
slime stops with an assertion after the queue and the start of Ray, or waits for an engine that never starts.

slime fills in a path with `str.format(rollout_id=…)`. Without the place every rollout overwrites the one before it, and only the
last one is left. Another name in braces stops the job when it saves or loads the first rollout.

## How to fix
Record first, with `--debug-rollout-only --save-debug-rollout-data DIR/{rollout_id}.pt`; then train on what was recorded, with
`--load-debug-rollout-data DIR/{rollout_id}.pt` alone. In Python's f-strings write `{{rollout_id}}`.

## When it can be wrong
A plugin may give the trainer its data in a way that this rule does not know; that finding is a warning. Or only the last rollout is
wanted. A path to load that has no place is no finding: each step then trains on the same file, as one does to compare layouts.

## Seen in
slime/utils/arguments.py `slime_validate_args` ("debug_rollout_only and debug_train_only cannot be set at the same time"); slime
docs/en/developer_guide/debug.md (`args.save_debug_rollout_data.format(rollout_id=rollout_id)`)
"""

import string
from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.document import clip
from ckptcheck.jobs.job import Job

DEBUG = ("debug.rollout_only", "debug.train_only", "debug.load_rollouts", "debug.save_rollouts", "debug.save_train")

FLAGS = {
    "debug.save_rollouts": ("--save-debug-rollout-data", ("rollout_id",)),
    "debug.load_rollouts": ("--load-debug-rollout-data", ("rollout_id",)),
    "debug.save_train": ("--save-debug-train-data", ("rollout_id", "rank")),
}
"""Setting → the flag, and the names that slime fills in."""


@rule(
    "JOB028",
    "conflicting-debug-flags",
    severity="error",
    on="job",
    when=lambda job: any(job[name].status == "set" for name in DEBUG),
)
def check(job: Job) -> Iterator[Problem]:
    job.require_resolved(*DEBUG)
    loads = job.text("debug.load_rollouts")
    if job.flag("debug.rollout_only"):
        if job.flag("debug.train_only"):
            yield job.problem(
                "--debug-rollout-only and --debug-train-only exclude each other: slime stops",
                at="debug.rollout_only",
                hint="keep one of them",
            )
        elif loads is not None:
            yield job.problem(
                "--debug-rollout-only and --load-debug-rollout-data exclude each other: recorded rollouts take the engine's place, "
                "so slime sets --debug-train-only itself, and stops",
                at="debug.rollout_only",
                hint="remove --debug-rollout-only to train on what was recorded",
            )
        elif job.flag("debug.sized") is False:
            yield job.problem(
                "--debug-rollout-only has neither --colocate nor --rollout-num-gpus, so slime cannot compute the number of "
                "GPUs and stops",
                at="debug.rollout_only",
                hint="add --rollout-num-gpus",
            )
    elif job.flag("debug.train_only") and loads is None and job.flag("debug.has_data") is False:
        yield job.problem(
            "--debug-train-only starts no engine, and no --load-debug-rollout-data says what to train on",
            at="debug.train_only",
            hint="record rollouts with --debug-rollout-only --save-debug-rollout-data first, and load them",
            severity="warning",
        )
    save = job.text("debug.save_rollouts")
    if save is not None and save == job.text("debug.save_train"):
        yield job.problem(
            "--save-debug-train-data names the same file as --save-debug-rollout-data: slime stops",
            at="debug.save_train",
            hint="give each its own path",
        )
    yield from _check_paths(job)


def _check_paths(job: Job) -> Iterator[Problem]:
    """Yield what is wrong with the places in the paths."""
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
