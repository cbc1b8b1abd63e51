"""What changes the path of inference is left to the defaults of the engine's version.

## What it checks
Prefix caching, asynchronous scheduling, cascade attention and the logprob mode are written down, not left to whatever the
installed version takes.

## Why it matters
A new version of the engine then changes the job without a change to the job. vLLM turned asynchronous scheduling on in 0.14 and
cascade attention off in 0.18.

## How to fix
Write them down, with the values this names if they are meant.

## When it can be wrong
It is no fault; it says what a comparison of two runs has to hold still.

## Seen in
PipelineRL's move from vLLM 0.8.5 to 0.18.1 ("runtime defaults")
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.preflight.job import Job, shown

LEFT = ("logprobs", "prefix_caching", "async_scheduling", "cascade_attention")


@rule("JOB005", "engine-defaults", severity="info", on="job", when=lambda job: job.engine == "vllm")
def check(job: Job) -> Iterator[Problem]:
    left = {name: job[f"engine.{name}"] for name in LEFT if job[f"engine.{name}"].source.startswith("default of vLLM")}
    by_source: dict[str, list[str]] = {}
    for name, setting in left.items():
        if name == "cascade_attention" and not setting.value:  # off, and gone in 0.32: nothing to write down
            continue
        by_source.setdefault(setting.source, []).append(f"{name.replace('_', ' ')} {shown(setting.value)}")
    for source, names in by_source.items():
        yield Problem(
            f"left to the {source}{'' if job.engine_version else ', for no version is told'}: {', '.join(names)}",
            hint="write them down, so that an update of the engine does not change the job",
        )
