"""This machine has too little shared memory for several processes.

## What it checks
With `--here`, where the job uses more than one GPU: /dev/shm has at least 1 GiB.

## Why it matters
- A container has 64 MB of shared memory unless it is asked for more. NCCL, vLLM's message queue and the workers of PyTorch's
  data loaders put their buffers there: "unable to allocate shared memory", or a bus error.
- Ray puts its object store into /tmp then, through which rollouts and weights go slowly.

## How to fix
`docker run --shm-size=16g` or `--ipc=host`; in Kubernetes an `emptyDir` with `medium: Memory` at /dev/shm.

## When it can be wrong
The job runs in another container than ckptcheck: run it there.

## Seen in
NVIDIA/nccl#342, vllm-project/vllm#1710, pytorch/torchtitan#853, NCCL's guide, "Troubleshooting: Docker" (`--shm-size=1g`); Ray:
"The object store is using /tmp instead of /dev/shm because …"
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.jobs.job import Job
from ckptcheck.text.formatting import format_bytes

LEAST = 1 << 30
"""Bytes that NCCL's guide asks for."""


@rule(
    "JOB058",
    "small-shared-memory",
    severity="warning",
    on="job",
    when=lambda job: job.machine is not None and job.machine.shared_memory is not None,
)
def check(job: Job) -> Iterator[Problem]:
    assert job.machine is not None
    memory = job.machine.shared_memory
    sizes = [job.number(name) for name in ("engine.tp", "trainer.tp", "trainer.world")]
    if memory is not None and memory < LEAST and any((size or 1) > 1 for size in sizes):
        yield Problem(
            f"/dev/shm of this machine has {format_bytes(memory)}, and the job's processes share memory: NCCL asks for"
            f" {format_bytes(LEAST)}",
            hint="start the container with --shm-size=16g or --ipc=host",
        )
