"""An asynchronous save loses what it is written from, or is not finished.

## What it checks
Asynchronous saves (`async_save`) against what the framework does meanwhile:
- slime, miles: the engine shares the trainer's GPUs, and the writer keeps handles of GPU memory from one save to the next;
- slime, miles: what is saved is finished only when the next save starts;
- verl: only Megatron saves asynchronously;
- miles: FSDP refuses it.

## Why it matters
- A colocated trainer gives its GPU memory back between steps. A persistent writer (`--use-persistent-ckpt-worker`) keeps handles of
  the first save's memory: in NeMo-RL every later checkpoint had the weights of the first one, bit for bit, and no word was said.
- slime and miles wait for a save only at the start of the next one. A job that dies before has no valid checkpoint of that step,
  so that up to two intervals are lost.

## How to fix
Leave `--async-save` out of colocated jobs, or `--use-persistent-ckpt-worker`; and keep `--save-interval` short.

## When it can be wrong
The writer copies to the host before the trainer's memory goes (Megatron without a persistent writer does): then only the second
point holds.

## Seen in
NVIDIA-NeMo/RL#3312 ("silently saves stale weights under colocate mode"), NVIDIA-NeMo/RL#3322, NVIDIA-NeMo/RL#4183,
THUDM/slime#1886, THUDM/slime slime/backends/megatron_utils/actor.py (`save_model`)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.jobs.job import Job


@rule(
    "JOB049",
    "unfinished-save",
    severity="warning",
    on="job",
    when=lambda job: (
        job["save.asynchronous"].status in ("set", "unresolved") and job.flag("save.asynchronous") is not False
    ),
)
def check(job: Job) -> Iterator[Problem]:
    job.require_resolved("save.asynchronous", "engine.colocated", "save.keeps_cuda_handles", "trainer.backend")
    asynchronous, backend = (
        f"checkpoints are written while the job goes on ({job['save.asynchronous'].place})",
        job.text("trainer.backend"),
    )
    if job.framework == "verl" and backend not in (None, "megatron"):
        yield job.problem(
            f"async_save is on ({job['save.asynchronous'].place}), and verl saves asynchronously only with Megatron, not with"
            f" {backend}: it has no effect",
            at="save.asynchronous",
            hint="take it out",
        )
    elif job.framework in ("slime", "miles") and backend == "fsdp":
        yield job.problem(
            f"{asynchronous}, and the trainer is {job.describe('trainer.backend')}, which does not: miles stops",
            at="save.asynchronous",
            severity="error",
            hint="take --async-save out",
        )
    elif job.framework in ("slime", "miles") and job.flag("engine.colocated") and job.flag("save.keeps_cuda_handles"):
        yield job.problem(
            f"{asynchronous} by a process that keeps handles of GPU memory ({job['save.keeps_cuda_handles'].place}), and the"
            f" trainer gives that memory back between steps ({job['engine.colocated'].place}): later checkpoints may hold the"
            " weights of the first one",
            at="save.asynchronous",
            hint="take --use-persistent-ckpt-worker or --async-save out",
        )
    elif job.framework in ("slime", "miles"):
        interval = job.number("save.interval")
        lost = f"an interval of {interval:g} rollouts" if interval else "an interval"
        yield job.problem(
            f"{asynchronous}, and are finished only when the next one starts: a job that ends between loses {lost} more",
            at="save.asynchronous",
            severity="info",
            hint="save more often, or take --async-save out",
        )
