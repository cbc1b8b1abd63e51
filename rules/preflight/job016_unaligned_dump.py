"""The job asks for a consistency dump, and its two sides would dump different shapes.

## What it checks
Where the script exports DUMP_ON, or Ray's runtime environment sets it:

- one mini batch (train_batch_size / ppo_mini_batch_size is 1);
- gradient accumulation of 1 (ppo_mini_batch_size · n / ppo_micro_batch_size_per_gpu / DP, where DP = GPUs / TP / PP / CP);
- no micro batches by number of tokens (use_dynamic_bsz, log_prob_use_dynamic_bsz);
- no padding (use_remove_padding);
- no balancing between ranks (balance_batch);
- prompts only (PROMPTS_ONLY).

## Why it matters
msProbe compares module by module. With a split batch, padding, moved sequences or responses in the training input, no shape of
one side occurs on the other, and the comparison says nothing.

## How to fix
Set the values in the message. The formulae are from the guide.

## When it can be wrong
You compare the dump by other means than by shape.

## Seen in
verl's and msProbe's guide to training-inference consistency (release/v0.6.1, Megatron)
"""

from collections.abc import Iterator
from math import ceil, gcd

from ckptcheck import Problem, rule
from ckptcheck.jobs.job import Job


@rule("JOB016", "unaligned-dump", severity="error", on="job", when=lambda job: bool(job.flag("dump.on")))
def check(job: Job) -> Iterator[Problem]:
    train, mini, micro = job.number("batch.train"), job.number("batch.mini"), job.number("batch.micro")
    tp, pp, cp = (job.number(f"trainer.{name}") or 1 for name in ("tp", "pp", "cp"))
    world, n = job.number("trainer.world"), job.number("rollout.n")
    # the sizes are changed at once, so each hint names what the others have to be then
    wanted, fixes, fitting = train or mini, "", {}
    if wanted and n and world:
        replicas = world / (tp * pp * cp)
        whole = wanted
        if replicas.is_integer() and n == int(n):  # a batch that the ranks can share
            step = int(replicas) // gcd(int(replicas), int(n))
            whole = ceil(wanted / step) * step
        fitting = {"train_batch_size": whole, "ppo_mini_batch_size": whole}
        fitting["ppo_micro_batch_size_per_gpu"] = whole * n / replicas
        given = {"train_batch_size": train, "ppo_mini_batch_size": mini, "ppo_micro_batch_size_per_gpu": micro}
        fixes = ", and ".join(
            f"{name} to {size:g}" for name, size in fitting.items() if given[name] not in (None, size)
        )
    if not job.flag("dump.prompts_only"):
        yield job.problem(
            "the script asks for a dump and does not export PROMPTS_ONLY: the training input holds the responses too",
            at="dump.on",
            hint="export PROMPTS_ONLY=1",
        )
    if train and mini and train != mini:
        yield job.problem(
            f"mini_batch_num is {train / mini:g}: train_batch_size {job.describe('batch.train')} / ppo_mini_batch_size"
            f" {job.describe('batch.mini')}",
            at="batch.mini",
            hint=f"set {fixes or f'ppo_mini_batch_size to {train:g}'}",
        )
    dynamic = next((name for name in ("batch.dynamic", "batch.log_prob_dynamic") if job.flag(name)), None)
    if dynamic:
        key = "use_dynamic_bsz" if dynamic == "batch.dynamic" else "log_prob_use_dynamic_bsz"
        yield job.problem(
            f"{key} is {job.describe(dynamic)}: batches are cut by tokens, so a rank's batch may be split",
            at=dynamic,
            hint=f"set {key} to False" + (f", and {fixes}" if fixes else ""),
        )
    elif mini and micro and n and world:
        replicas = world / (tp * pp * cp)
        steps = mini * n / micro / replicas
        if steps != 1:
            yield job.problem(
                f"gradient accumulation is {steps:g}: ppo_mini_batch_size {mini:g} × n {n:g} / ppo_micro_batch_size_per_gpu"
                f" {micro:g} / DP {replicas:g}",
                at="batch.micro",
                hint=f"set {fixes}",
            )
    elif micro is None:
        yield job.problem(
            "ppo_micro_batch_size_per_gpu is not set, so ckptcheck cannot tell whether gradient accumulation is 1",
            at="batch.mini",
            hint=f"set it to {fitting['ppo_micro_batch_size_per_gpu']:g}"
            if fitting
            else "set it to ppo_mini_batch_size × n / DP, with DP as the ranks of data parallelism",
        )
    if job.flag("trainer.remove_padding") is False:
        yield job.problem(
            f"use_remove_padding is {job.describe('trainer.remove_padding')}: the training input is padded",
            at="trainer.remove_padding",
            hint="set actor_rollout_ref.model.use_remove_padding to True",
        )
    if job.flag("batch.balance"):
        yield job.problem(
            f"balance_batch is {job.describe('batch.balance')}: ranks of the two sides then hold different sequences",
            at="batch.balance",
            hint="set trainer.balance_batch to False",
        )
