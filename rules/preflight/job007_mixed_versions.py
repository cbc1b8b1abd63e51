"""Weights change while requests run, so one response can hold tokens of several versions.

## What it checks
Runs with `--settings`.

Whether updates happen in flight, what happens to running requests then, and whether the job bounds the age of rollouts.

## Why it matters
- A response that was paused and resumed comes from two policies, and its keys and values are those of the older one.
- That can be intended. Then rollouts have to carry their weight versions, and somebody has to watch a lag that has no bound.

## How to fix
Bound the lag (`max_lag`), and record weight versions with rollouts.

## When it can be wrong
It is not a fault where you want asynchronous training.

## Seen in
vllm-project/vllm#54443, PipelineRL's move to vLLM V1 ("lag was a useful runtime diagnostic")
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.jobs.job import Job


@rule(
    "JOB007",
    "mixed-versions",
    severity="info",
    on="job",
    when=lambda job: job.lists_settings and job["update.in_flight"].is_known,
)
def check(job: Job) -> Iterator[Problem]:
    if not job.flag("update.in_flight"):
        return
    detail = f" ({job['update.in_flight'].place})"
    if mode := job.text("update.pause_mode"):
        detail = f" (pause mode {mode}: {job['update.pause_mode'].place})"
    if job.flag("algorithm.unbounded_lag"):
        bound = f"and nothing bounds how old a rollout may be ({job['algorithm.unbounded_lag'].place})"
    else:
        lag = job.number("algorithm.lag")
        bound = (
            f"and rollouts may be {lag:g} version{'' if lag == 1 else 's'} old"
            if lag is not None
            else "and the lag is not known"
        )
    yield job.problem(
        f"weights change while requests run{detail}, {bound}",
        at="algorithm.unbounded_lag" if job.flag("algorithm.unbounded_lag") else "update.in_flight",
        hint="record the weight versions of every response, and watch the lag",
    )
