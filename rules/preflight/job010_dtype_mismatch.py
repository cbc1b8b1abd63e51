"""Trainer and engine compute in different dtypes.

## What it checks
The trainer's forward pass and the engine compute in the same dtype. An engine's `auto` stands for the dtype in which the
checkpoint is stored, where the checkpoint is on this machine.

## Why it matters
bfloat16 has three bits less than float16 and rounds at other places. Logprobs differ by hundredths of a nat in every token, and
by more where rounding sends a token to another expert.

## How to fix
Set both to the same dtype.

## When it can be wrong
You want the difference, and correct for it.

## Seen in
NeMo-RL's guide ("Numerical precision differences"), verl's FAQ (rollout_probs_diff_mean)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.jobs.job import Job


@rule(
    "JOB010",
    "dtype-mismatch",
    severity="warning",
    on="job",
    when=lambda job: job["trainer.dtype"].status != "unknown" and job["engine.dtype"].status != "unknown",
)
def check(job: Job) -> Iterator[Problem]:
    job.require_resolved("trainer.dtype", "engine.dtype")
    trainer, engine = job.text("trainer.dtype"), job.text("engine.dtype")
    place = job["engine.dtype"].place
    if engine == "auto":
        checkpoint = job.checkpoints.get("checkpoint.model")
        job.require_read("checkpoint.model", "config.json")
        # Engines do not compute in float32 because a checkpoint is stored in it.
        engine = checkpoint.dtype if checkpoint is not None and checkpoint.dtype != "float32" else None
        place = f"auto: as {checkpoint.named} is stored" if checkpoint else ""
    if trainer and engine and trainer != engine:
        yield job.problem(
            f"the trainer computes in {trainer} ({job['trainer.dtype'].place}), the engine in {engine} ({place})",
            at="engine.dtype" if job["engine.dtype"].leaf else "trainer.dtype",
            hint="compute in the same dtype on both sides",
        )
