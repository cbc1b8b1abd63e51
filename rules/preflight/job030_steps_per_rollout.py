"""The global batch size does not fit the number of optimizer steps per rollout.

## What it checks
In jobs of slime and miles with `--num-steps-per-rollout`: `rollout_batch_size × n_samples_per_prompt ÷ num_steps_per_rollout` has
no remainder, and equals `--global-batch-size` if the job sets that.

With more than one step per rollout an info says which step to look at: KL is 0 and the gradient norm small at the first optimizer
step of the first rollout only, because later ones train on responses of older weights.

## Why it matters
slime stops with an assertion if the two differ; it does not train on the remainder of the division.

## How to fix
Give one of the two flags. To check that trainer and engine agree, set `--num-steps-per-rollout 1`.

## When it can be wrong
`--use-dynamic-global-batch-size` computes the batch anew for each rollout.

## Seen in
slime/utils/arguments.py `slime_validate_args`; slime docs/en/developer_guide/debug.md ("First Training Step", 3)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.jobs.job import Job


@rule(
    "JOB030",
    "steps-per-rollout",
    severity="error",
    on="job",
    when=lambda job: job["batch.steps_per_rollout"].status in ("set", "unresolved"),
)
def check(job: Job) -> Iterator[Problem]:
    job.require_resolved("batch.steps_per_rollout", "batch.train", "rollout.n", "batch.responses")
    steps, prompts, samples = job.number("batch.steps_per_rollout"), job.number("batch.train"), job.number("rollout.n")
    batch = job.number("batch.responses")
    if steps is None:
        return
    if steps < 1:
        yield job.problem(
            f"--num-steps-per-rollout is {job.describe('batch.steps_per_rollout')}, and slime divides by it",
            at="batch.steps_per_rollout",
            hint="set it to 1 or more",
        )
        return
    if prompts is not None and samples is not None:
        responses = prompts * samples
        if batch is not None and batch != responses // steps:
            yield job.problem(
                f"--global-batch-size is {job.describe('batch.responses')}, but {prompts:g} prompts × {samples:g} samples ÷ "
                f"{steps:g} steps are {responses // steps:g}: slime stops",
                at="batch.responses",
                hint="remove --global-batch-size, or correct --num-steps-per-rollout",
            )
        elif responses % steps:
            yield job.problem(
                f"{prompts:g} prompts × {samples:g} samples are not divisible by {steps:g} steps, so {responses % steps:g} "
                "responses of each rollout are not trained on",
                at="batch.steps_per_rollout",
                severity="warning",
                hint="choose a divisor",
            )
    if steps > 1:
        yield job.problem(
            f"each rollout trains {steps:g} steps: KL is 0 and the gradient norm small at the first of them only",
            at="batch.steps_per_rollout",
            severity="info",
            hint="set --num-steps-per-rollout 1 to see whether KL is 0 at the first step",
        )
