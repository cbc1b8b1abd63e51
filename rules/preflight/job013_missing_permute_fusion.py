"""A model with experts trains in Megatron without --moe-permute-fusion.

## What it checks
Where the model has experts and Megatron trains it, `--moe-permute-fusion` is on.

## Why it matters
Without it, versions of Megatron and Transformer Engine have a fault that shows at the first step: KL is not 0 and the gradient
norm is not small, though the weights have not moved.

## How to fix
`--moe-permute-fusion`; in verl `+actor_rollout_ref.actor.megatron.override_transformer_config.moe_permute_fusion=True`.

## When it can be wrong
In versions without the fault: the first step's KL is exactly 0.

## Seen in
slime's debugging guide
"""

from collections.abc import Iterator

from ckptcheck import Problem, Skip, rule
from ckptcheck.preflight.job import Job


@rule(
    "JOB013",
    "missing-permute-fusion",
    severity="warning",
    on="job",
    when=lambda job: job.text("trainer.backend") == "megatron",
)
def check(job: Job) -> Iterator[Problem]:
    if job.moe is None:
        raise Skip("whether the model has experts is neither in the configuration nor in a checkpoint that is here")
    fusion = job.flag("trainer.moe_permute_fusion")
    if job.moe and fusion is None:
        raise Skip("the model has experts, and whether Megatron fuses their permutation is not in the configuration")
    if job.moe and not fusion:
        yield job.problem(
            f"the model has experts, and --moe-permute-fusion is off ({job['trainer.moe_permute_fusion'].place}): some versions of"
            " Megatron and Transformer Engine are wrong then from the first step on",
            at="trainer.moe_permute_fusion" if job["trainer.moe_permute_fusion"].leaf else "trainer.moe",
            hint="set --moe-permute-fusion, and see that the first step's KL is exactly 0",
        )
