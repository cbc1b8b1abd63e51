"""Megatron does not use flash attention under context parallelism.

## What it checks
With context parallelism above 1, `--attention-backend flash` is set.

## Why it matters
In some versions of Transformer Engine the fused attention is numerically unstable under context parallelism: log_probs and
ref_log_probs of the first step differ although they have to be equal.

## How to fix
`--attention-backend flash`; in verl `override_transformer_config.attention_backend: flash`.

## When it can be wrong
- With multi-latent attention flash may not be available; the rule stays quiet there.
- Your version of Transformer Engine does not have the fault: compare log_probs and ref_log_probs of the first step.

## Seen in
slime's debugging guide
"""

from collections.abc import Iterator

from ckptcheck import Problem, Skip, rule
from ckptcheck.jobs.job import Job


@rule(
    "JOB012",
    "attention-under-cp",
    severity="warning",
    on="job",
    when=lambda job: job.text("trainer.backend") == "megatron",
)
def check(job: Job) -> Iterator[Problem]:
    job.require_resolved("trainer.cp", "trainer.attention_backend")
    cp = job.number("trainer.cp") or 1
    if cp < 2 or job.flag("trainer.mla"):
        return
    backend = job.text("trainer.attention_backend")
    if backend is None:
        raise Skip("context parallelism is on, and the configuration does not say which attention Megatron uses")
    if backend != "flash":
        version = f" (yours: {job.te_version})" if job.te_version else ""
        yield job.problem(
            f"context parallelism is {cp:g}, and the attention backend is {job.describe('trainer.attention_backend')}: in some"
            f" versions of Transformer Engine{version} that is numerically unstable, and log_probs differ from ref_log_probs",
            at="trainer.attention_backend" if job["trainer.attention_backend"].leaf else "trainer.cp",
            hint="set --attention-backend flash",
        )
