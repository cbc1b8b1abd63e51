"""Under context parallelism Megatron takes another attention than flash.

## What it checks
With context parallelism above 1, `--attention-backend flash` is set.

## Why it matters
In some versions of Transformer Engine the fused attention is numerically unstable under context parallelism: log_probs and
ref_log_probs of the first step, which have to be equal, are not.

## How to fix
`--attention-backend flash`; in verl `override_transformer_config.attention_backend: flash`.

## When it can be wrong
With multi-latent attention, for which flash may not be there: nothing is said then. In versions of Transformer Engine without
the fault: look at the first step's log_probs and ref_log_probs.

## Seen in
slime's debugging guide
"""

from collections.abc import Iterator

from ckptcheck import Problem, Skip, rule
from ckptcheck.preflight.job import Job


@rule(
    "JOB012",
    "attention-under-cp",
    severity="warning",
    on="job",
    when=lambda job: job.text("trainer.backend") == "megatron",
)
def check(job: Job) -> Iterator[Problem]:
    job.need("trainer.cp", "trainer.attention_backend")
    cp = job.number("trainer.cp") or 1
    if cp < 2 or job.flag("trainer.mla"):
        return
    backend = job.text("trainer.attention_backend")
    if backend is None:
        raise Skip("context parallelism is on, and which attention Megatron takes is not in the configuration")
    if backend != "flash":
        told = f" ({job.te_version} is told)" if job.te_version else ""
        yield job.problem(
            f"context parallelism is {cp:g}, and the attention backend is {job.said('trainer.attention_backend')}: in some"
            f" versions of Transformer Engine{told} it is not stable then, and log_probs differ from ref_log_probs",
            at="trainer.attention_backend" if job["trainer.attention_backend"].leaf else "trainer.cp",
            hint="set --attention-backend flash",
        )
