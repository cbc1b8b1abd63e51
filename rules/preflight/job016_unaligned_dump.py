"""A consistency dump is asked for, and the two sides would not dump the same shapes.

## What it checks
Where DUMP_ON is exported: one mini batch (train_batch_size / ppo_mini_batch_size), gradient accumulation of 1
(ppo_mini_batch_size · n / ppo_micro_batch_size_per_gpu / DP, where DP = GPUs / TP / PP / CP), no padding
(use_remove_padding), no balancing between ranks (balance_batch), and prompts only (PROMPTS_ONLY).

## Why it matters
msProbe compares module by module. With a split batch, padding, moved sequences or responses in the training input no shape of
one side is found on the other, and the comparison says nothing.

## How to fix
Set what this names; the formulae are those of the guide.

## When it can be wrong
If the dump is compared by other means than by shape.

## Seen in
verl's and msProbe's guide to training-inference consistency (release/v0.6.1, Megatron)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.preflight.job import Job


@rule("JOB016", "unaligned-dump", severity="error", on="job", when=lambda job: bool(job.flag("dump.on")))
def check(job: Job) -> Iterator[Problem]:
    train, mini, micro = job.number("batch.train"), job.number("batch.mini"), job.number("batch.micro")
    if not job.flag("dump.prompts_only"):
        yield job.problem(
            "a dump is asked for, and PROMPTS_ONLY is not exported: the training input holds the responses too",
            at="dump.on",
            hint="export PROMPTS_ONLY=1",
        )
    if train and mini and train != mini:
        yield job.problem(
            f"mini_batch_num is {train / mini:g}: train_batch_size {job.said('batch.train')} / ppo_mini_batch_size"
            f" {job.said('batch.mini')}",
            at="batch.mini",
            hint=f"set ppo_mini_batch_size to {train:g}",
        )
    parts = [job.number(f"trainer.{name}") or 1 for name in ("tp", "pp", "cp")]
    world, n = job.number("trainer.world"), job.number("rollout.n")
    if mini and micro and n and world:
        replicas = world / (parts[0] * parts[1] * parts[2])
        steps = mini * n / micro / replicas
        if steps != 1:
            yield job.problem(
                f"gradient accumulation is {steps:g}: ppo_mini_batch_size {mini:g} × n {n:g} / ppo_micro_batch_size_per_gpu"
                f" {micro:g} / DP {replicas:g}",
                at="batch.micro",
                hint=f"set ppo_micro_batch_size_per_gpu to {whole:g}"
                if (whole := mini * n / replicas).is_integer()
                else None,
            )
    elif micro is None:
        yield job.problem(
            "ppo_micro_batch_size_per_gpu is not set, so gradient accumulation is not known to be 1", at="batch.mini"
        )
    if job.flag("trainer.remove_padding") is False:
        yield job.problem(
            f"use_remove_padding is {job.said('trainer.remove_padding')}: the training input is padded",
            at="trainer.remove_padding",
            hint="set actor_rollout_ref.model.use_remove_padding to True",
        )
    if job.flag("batch.balance"):
        yield job.problem(
            f"balance_batch is {job.said('batch.balance')}: ranks of the two sides hold other sequences",
            at="batch.balance",
            hint="set trainer.balance_batch to False",
        )
