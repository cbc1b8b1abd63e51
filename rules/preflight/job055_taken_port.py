"""Another program listens on a port of this machine that the job needs.

## What it checks
With `--here`: no program listens on the ports that the configuration names for the job's own servers (vLLM, SGLang and its router,
NeMo-RL's refit server, `MASTER_PORT`). The rule leaves out ports to which the job only connects.

## Why it matters
The server cannot bind the port, and the job stops after its models are loaded; or it finds the server of an older job that
still runs there, with other weights.

## How to fix
End the other program, or choose another port.

## When it can be wrong
The server of this very job runs already, or it will run on another machine: leave `--here` out.

## Seen in
NVIDIA/srt-slurm#134 (found out 15 minutes into a run, when SGLang binds the port), om-ai-lab/VLM-R1#289
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.jobs.job import Job


@rule(
    "JOB055",
    "taken-port",
    severity="error",
    on="job",
    when=lambda job: job.machine is not None and bool(job.machine.ports),
)
def check(job: Job) -> Iterator[Problem]:
    assert job.machine is not None
    for port in job.machine.ports:
        if port.is_taken:
            yield job.problem_at(
                port.leaf,
                f"another program listens on port {port.number} of this machine, on which the job has to listen itself",
                hint="end that program, or choose another port",
            )
