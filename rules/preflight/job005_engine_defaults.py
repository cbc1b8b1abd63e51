"""The job leaves settings that change inference to the defaults of the engine's version.

## What it checks
Runs with `--settings`.

The job writes down prefix caching, asynchronous scheduling, cascade attention and the logprob mode, instead of taking whatever
the installed version of vLLM defaults to.

## Why it matters
An update of the engine then changes the job although its files stay the same. vLLM turned asynchronous scheduling on in 0.14 and
cascade attention off in 0.18.

## How to fix
Write the settings down. If today's behaviour is what you want, use the values in the message.

## When it can be wrong
It is not a fault. It lists what has to stay the same when you compare two runs.

## Seen in
PipelineRL's move from vLLM 0.8.5 to 0.18.1 ("runtime defaults")
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.jobs.job import Job, shown

LEFT = ("logprobs", "prefix_caching", "async_scheduling", "cascade_attention")


@rule(
    "JOB005", "engine-defaults", severity="info", on="job", when=lambda job: job.lists_settings and job.engine == "vllm"
)
def check(job: Job) -> Iterator[Problem]:
    defaults = {
        name: job[f"engine.{name}"] for name in LEFT if job[f"engine.{name}"].source.startswith("default of vLLM")
    }
    by_source: dict[str, list[str]] = {}
    for name, setting in defaults.items():
        # Where cascade attention is off, the job needs no setting: vLLM 0.32 no longer has it.
        if name == "cascade_attention" and not setting.value:
            continue
        by_source.setdefault(setting.source, []).append(f"{name.replace('_', ' ')} {shown(setting.value)}")
    for source, names in by_source.items():
        yield Problem(
            f"the job leaves these to the"
            f" {source}{'' if job.engine_version else ' (assumed, because the job names no version)'}: {', '.join(names)}",
            hint="write them down, so that an update of the engine does not change the job",
        )
