"""This machine lacks what the job needs: a path, a port, or shared memory.

## What it checks
With `--here`:
- checkpoints and data files that the job names by a path exist and can be read; the folders for checkpoints and weight updates
  can be written, or made. Names of repositories (`org/model`) and addresses (`s3://…`) are left alone;
- no program listens on the ports that the configuration names for the job's own servers (vLLM, SGLang and its router, NeMo-RL's
  refit server, `MASTER_PORT`). Ports to which the job only connects are left out;
- where the job uses more than one GPU, /dev/shm has at least 1 GiB: a warning.

## Why it matters
- A path with a typing error stops the job after the queue and the start of Ray; for transformers it is the name of a repository,
  and the message is then about the Hub. A folder that cannot be written is found out at the first save.
- A server that cannot bind its port stops the job after its models are loaded; or the job finds the server of an older job that
  still runs there, with other weights.
- A container has 64 MB of shared memory unless it is asked for more. NCCL, vLLM's message queue and the workers of PyTorch's
  data loaders put their buffers there: "unable to allocate shared memory", or a bus error. Ray puts its object store into /tmp
  then, through which rollouts and weights go slowly.

## How to fix
Correct the path, or mount what it needs. End the other program, or choose another port. Start the container with
`docker run --shm-size=16g` or `--ipc=host`; in Kubernetes with an `emptyDir` with `medium: Memory` at /dev/shm.

## When it can be wrong
The job runs in a container, or on another machine, that has other paths, ports and memory: leave `--here` out, or run it there. Or
the server of this very job runs already.

## Seen in
verl-project/verl#3048 (transformers: "Repo id must be in the form 'repo_name' or 'namespace/repo_name'", of a path that does
not exist), NVIDIA/srt-slurm#134 (found out 15 minutes into a run, when SGLang binds the port), om-ai-lab/VLM-R1#289,
NVIDIA/nccl#342, vllm-project/vllm#1710, pytorch/torchtitan#853, NCCL's guide, "Troubleshooting: Docker" (`--shm-size=1g`); Ray:
"The object store is using /tmp instead of /dev/shm because …"
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.document import clip
from ckptcheck.jobs.job import Job
from ckptcheck.text.formatting import format_bytes

WHAT = {
    "model": "the checkpoint",
    "data": "the data file",
    "save": "the folder for checkpoints,",
    "update": "the folder for weight updates,",
}
LEAST = 1 << 30
"""Bytes of shared memory that NCCL's guide asks for."""


@rule("JOB057", "not-on-this-machine", severity="error", on="job", when=lambda job: job.machine is not None)
def check(job: Job) -> Iterator[Problem]:
    assert job.machine is not None
    for path in job.machine.paths:
        if path.trouble:
            comma = "," if WHAT[path.use].endswith(",") else ""
            end = " on this machine" if path.trouble == "does not exist" else ""
            is_read = path.use in ("model", "data")
            yield job.problem_at(
                path.leaf,
                f"{WHAT[path.use]} {clip(path.named)}{comma} {path.trouble}{end}",
                hint="correct the path" if is_read else "choose a folder that this user can write to",
            )
    for port in job.machine.ports:
        if port.is_taken:
            yield job.problem_at(
                port.leaf,
                f"another program listens on port {port.number} of this machine, on which the job has to listen itself",
                hint="end that program, or choose another port",
            )
    memory = job.machine.shared_memory
    sizes = [job.number(name) for name in ("engine.tp", "trainer.tp", "trainer.world")]
    if memory is not None and memory < LEAST and any((size or 1) > 1 for size in sizes):
        yield Problem(
            f"/dev/shm of this machine has {format_bytes(memory)}, and the job's processes share memory: NCCL asks for"
            f" {format_bytes(LEAST)}",
            hint="start the container with --shm-size=16g or --ipc=host",
            severity="warning",
        )
