"""Trainer and engine compute in different dtypes.

## What it checks
The dtype of the trainer's forward pass is the engine's; `auto` is the dtype that the checkpoint is stored in, where that is here.

## Why it matters
bfloat16 has three bits less than float16, and rounds at other places: logprobs differ by hundredths of a nat in every token, and
by more where experts are chosen otherwise.

## How to fix
Set both to the same.

## When it can be wrong
If the difference is wanted, with a correction for it.

## Seen in
NeMo-RL's guide ("Numerical precision differences"), verl's FAQ (rollout_probs_diff_mean)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.preflight.job import Job


@rule(
    "JOB010",
    "dtype-mismatch",
    severity="warning",
    on="job",
    when=lambda job: job["trainer.dtype"].status != "unknown" and job["engine.dtype"].status != "unknown",
)
def check(job: Job) -> Iterator[Problem]:
    job.need("trainer.dtype", "engine.dtype")
    trainer, engine = job.text("trainer.dtype"), job.text("engine.dtype")
    place = job["engine.dtype"].place
    if engine == "auto":
        named = job.checkpoints.get("checkpoint.model")
        stored = named.dtype if named is not None and named.dtype != "float32" else None  # which engines do not keep
        engine, place = stored, f"auto: as {named.named} is stored" if named else ""
    if trainer and engine and trainer != engine:
        yield job.problem(
            f"the trainer computes in {trainer} ({job['trainer.dtype'].place}), the engine in {engine} ({place})",
            at="engine.dtype" if job["engine.dtype"].leaf else "trainer.dtype",
            hint="compute in the same dtype on both sides",
        )
