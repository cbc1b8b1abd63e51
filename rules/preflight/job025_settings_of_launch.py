"""Settings that change logprobs come from a command line, and not from the job's configuration file.

## What it checks
A job that has a configuration file (YAML, TOML): the settings of the engine, of sampling, of weight updates and of the trainer's
logprobs whose value a launch line sets, or a `key=value` after the file, instead of that file.

## Why it matters
Two runs of one configuration then differ without a trace in it. Who compares them, or repeats one, does not see what was different,
and a setting that was tried once stays.

## How to fix
Write the setting into the configuration, and start the job without the override.

## When it can be wrong
It is not a fault. The launch script may be kept with the configuration, and values that you give ckptcheck for what only the job's
machine knows are no settings of a launch.

## Seen in
PipelineRL's move to vLLM V1: disable-cascade-attn came through launch-time arguments and was missing in the committed recipe
(https://huggingface.co/blog/ServiceNow-AI/correctness-before-corrections)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.jobs.job import Job, Setting, shown
from ckptcheck.text.formatting import join_truncated

CONFIGURATIONS = (".yaml", ".yml", ".toml")
CHANGING = (
    "engine.", "update.", "algorithm.", "rollout.temperature", "rollout.top_", "rollout.min_p", "rollout.repetition_penalty",
    "rollout.presence_penalty", "rollout.frequency_penalty", "rollout.logprobs", "trainer.temperature", "trainer.dtype",
    "trainer.fp32_head", "trainer.fp8", "trainer.attention_backend",
)  # fmt: skip
"""Beginnings of the fields on which logprobs or their use depend."""


@rule(
    "JOB025",
    "settings-of-launch",
    severity="info",
    on="job",
    when=lambda job: any(file.endswith(CONFIGURATIONS) for file in job.files),
)
def check(job: Job) -> Iterator[Problem]:
    by_key: dict[str, Setting] = {}
    for name, setting in job.settings.items():
        leaf = setting.leaf
        if leaf is not None and name.startswith(CHANGING) and not (leaf.file or "").endswith(CONFIGURATIONS):
            by_key.setdefault(leaf.key, setting)
    if not by_key:
        return
    parts = []
    for key, setting in by_key.items():
        old = job.replaced.get(key)
        replaced = f"; {old.file} has {shown(old.value)}" if old is not None else ""
        value = setting.leaf.value if setting.leaf else setting.value
        text = str(value).lower() if isinstance(value, bool) else shown(value)
        parts.append(f"{key}={text} ({setting.place}{replaced})")
    yield Problem(
        f"set on a command line, and not in the configuration: {join_truncated(parts, 6)}",
        hint="write them into the configuration, so that another run of it is the same job",
    )
