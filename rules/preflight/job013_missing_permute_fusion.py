"""A model with experts trains in Megatron without --moe-permute-fusion.

## What it checks
Where Megatron trains a model with experts, `--moe-permute-fusion` is on. An info in verl, which leaves it off for Transformer
Engine before 2.1; a warning elsewhere.

## Why it matters
Without it some versions of Megatron and Transformer Engine have a fault that shows at the first step: KL is not 0 and the
gradient norm is not small, although the weights have not moved.

## How to fix
`--moe-permute-fusion`; in verl `+actor_rollout_ref.actor.megatron.override_transformer_config.moe_permute_fusion=True`.

## When it can be wrong
Adapters of experts need it off: the rule stays quiet where the trainer trains adapters.
Your versions do not have the fault: the first step's KL is exactly 0.

## Seen in
slime's debugging guide
"""

from collections.abc import Iterator

from ckptcheck import Problem, Skip, rule
from ckptcheck.jobs.job import Job


@rule(
    "JOB013",
    "missing-permute-fusion",
    severity="warning",
    on="job",
    when=lambda job: job.text("trainer.backend") == "megatron",
)
def check(job: Job) -> Iterator[Problem]:
    if job.moe is None:
        job.require_read("checkpoint.model", "config.json")
        raise Skip("neither the configuration nor a checkpoint on this machine says whether the model has experts")
    fusion = job.flag("trainer.moe_permute_fusion")
    if job.moe and fusion is None:
        raise Skip("the model has experts, and the configuration does not say whether Megatron fuses their permutation")
    # Adapters of experts need the permutation unfused.
    if job.moe and not fusion and not job.flag("trainer.lora"):
        yield job.problem(
            f"the model has experts, and --moe-permute-fusion is off ({job['trainer.moe_permute_fusion'].place}): some versions of"
            " Megatron and Transformer Engine then compute wrong results from the first step on",
            # verl leaves it off on purpose, for Transformer Engine before 2.1 (`config_converter.py`).
            severity="info" if job.framework == "verl" else None,
            at="trainer.moe_permute_fusion" if job["trainer.moe_permute_fusion"].leaf else "trainer.moe",
            hint="set --moe-permute-fusion, and see that the first step's KL is exactly 0",
        )
