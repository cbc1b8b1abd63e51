"""The disk that the job writes to has no room for one checkpoint.

## What it checks
With `--here`, where the job's model is on this machine and its size is known:
- the disk of the save directory has room for the weights, and for a checkpoint with the optimizer's state;
- the disk through which weight updates travel, or on which the engine keeps their base, has room for the weights.

## Why it matters
A job writes its first checkpoint after hours, and stops there. What is written until then is a checkpoint with shards missing.
A weight update that does not fit stops the job at the first step.

## How to fix
Free the disk, choose another folder, or save without the optimizer (`--no-save-optim`).

## When it can be wrong
The optimizer's state is estimated at 12 bytes a parameter beside the weights (a float32 copy and two of Adam's). A job that
trains adapters, or shards its checkpoint over the disks of several machines, needs less.

## Seen in
awslabs/awsome-distributed-ai#1225 (a checkpoint of 53 GB ended after 27 GB), Megatron-LM's distributed optimizer (float32
parameters, two moments), THUDM/slime `--update-weight-disk-dir` ("one complete HF checkpoint directory is written per sync")
"""

from collections.abc import Iterator

from ckptcheck import Problem, Skip, rule
from ckptcheck.jobs.job import Job
from ckptcheck.text.formatting import format_bytes

OPTIMIZER_BYTES = 12
"""Bytes of the optimizer's state for a parameter: a float32 copy, and Adam's two moments in float32."""
WEIGHT_BYTES = 2
"""Bytes of a parameter in bfloat16."""


@rule(
    "JOB056",
    "full-disk",
    severity="error",
    on="job",
    when=lambda job: job.machine is not None and any(path.free is not None for path in job.machine.paths),
)
def check(job: Job) -> Iterator[Problem]:
    assert job.machine is not None
    model = job.checkpoints.get("checkpoint.model")
    if model is None or not model.weight_bytes:
        raise Skip("the size of the model is not known: its checkpoint is not on this machine, or not scanned")
    weights = model.weight_bytes
    for path in job.machine.paths:
        if path.free is None:
            continue
        if path.free < weights:
            yield job.problem_at(
                path.leaf,
                f"the disk of {path.named} has {format_bytes(path.free)} free, and the weights alone have {format_bytes(weights)}",
                hint="free the disk, or choose another folder",
            )
        elif path.use == "save" and not job.flag("trainer.lora"):
            whole = weights * (WEIGHT_BYTES + OPTIMIZER_BYTES) // WEIGHT_BYTES
            if path.free < whole:
                yield job.problem_at(
                    path.leaf,
                    f"the disk of {path.named} has {format_bytes(path.free)} free, and a checkpoint with the optimizer's"
                    f" state has about {format_bytes(whole)}",
                    severity="warning",
                    hint="free the disk, choose another folder, or save without the optimizer",
                )
