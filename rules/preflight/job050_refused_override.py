"""Hydra refuses an override of the launch line, so the job does not start.

## What it checks
The overrides of a launch line whose program reads them with Hydra or with Hydra's parser (verl, NeMo-RL, PipelineRL):

- Hydra's grammar takes each of them. Outside of quotes it refuses a second `=`, quotes inside of a value, `${a:${b}}` and most
  signs.
- Where the configuration that the program composes was read as a whole, `key=value` names a key that it has, `+key=value` one that
  it does not have, and `~key` one that has a value.
- `group=option` chooses for a config group that the defaults list has, and `group@package=option` names a group.
- A list of values (`a=1,2`) stands beside `--multirun` only.

## Why it matters
The program stops before the job begins, on every node that was allocated for it: "Could not override …", "mismatched input '='".

## How to fix
Add `+` to a key that the configuration does not have, and leave it out where it does. Put a value with signs into quotes that reach
Hydra: `'key="a=b"'`. Where many keys are missing, see whether a choice for a config group (`model_engine=megatron`) brings them.

## When it can be wrong
The configurations beside the script are of another version than the program that runs, such as a new checkout beside an old
package. Then use `--ignore JOB050`.

## Seen in
verl's examples at 1dda039b9: four name `actor_rollout_ref.actor.model_engine` for the group `model_engine`, or add with `+` a key
that the configuration has by now (examples/tuning/lora/run_qwen3_8b_merge_fsdp.sh); fifteen overrides of
examples/router_replay/run_qwen3_30b_a3b_megatron.sh need `model_engine=megatron`
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.document import clip
from ckptcheck.jobs.job import Job
from ckptcheck.text.formatting import count, join_truncated

MOST = 6
"""Largest number of findings, and of keys in one."""


@rule(
    "JOB050",
    "refused-override",
    severity="error",
    on="job",
    when=lambda job: any(refusal.is_override for refusal in job.refusals),
)
def check(job: Job) -> Iterator[Problem]:
    refused = [refusal for refusal in job.refusals if refusal.is_override]
    missing = [refusal for refusal in refused if refusal.missing]
    if missing:
        keys = join_truncated(list(dict.fromkeys(clip(refusal.missing, 120) for refusal in missing)), MOST)
        yield Problem(
            f"Hydra refuses {count(len(missing), 'override')}: the configuration has no key {keys}",
            file=missing[0].leaf.file,
            line=missing[0].leaf.line,
            hint="correct the key, or write +key=… where the program reads one that its configuration does not have",
        )
    for refusal in [refusal for refusal in refused if not refusal.missing][:MOST]:
        yield Problem(
            f"Hydra refuses an override: {refusal.why}",
            file=refusal.leaf.file,
            line=refusal.leaf.line,
            hint="the job stops before it starts; correct the launch line",
        )
