"""Hydra refuses an override of the launch line, so the job does not start.

## What it checks
The overrides of a launch line whose program reads them with Hydra or with Hydra's parser (verl, NeMo-RL, PipelineRL):

- Hydra's grammar takes each of them. Outside of quotes it refuses a second `=`, quotes inside of a value, `${a:${b}}` and most
  signs.
- Where the configuration that the program composes was read as a whole, `key=value` names a key that it has, `+key=value` one that
  it does not have, and `~key` one that has a value.
- `group=option` chooses for a config group that the defaults list has, and `group@package=option` names a group.
- A list of values (`a=1,2`) stands beside `--multirun` only.

Where one more choice for a config group gives the configuration the missing keys, that choice is named.

## Why it matters
The program stops before the job begins, on every node that was allocated for it: "Could not override …", "mismatched input '='".

## How to fix
Add `+` to a key that the configuration does not have, and leave it out where it does. Put a value with signs into quotes that reach
Hydra: `'key="a=b"'`.

## When it can be wrong
The configurations beside the script are of another version than the program that runs, such as a new checkout beside an old
package. Then use `--ignore JOB050`.

## Seen in
verl's examples at 1dda039b9: four name `actor_rollout_ref.actor.model_engine` for the group `model_engine`, or add with `+` a key
that the configuration has by now (examples/tuning/lora/run_qwen3_8b_merge_fsdp.sh); fifteen overrides of
examples/router_replay/run_qwen3_30b_a3b_megatron.sh need `model_engine=megatron`
"""

from collections.abc import Iterator, Sequence

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.document import clip
from ckptcheck.jobs.document import Refusal
from ckptcheck.jobs.job import Job
from ckptcheck.text.formatting import count, join_truncated, join_words

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
    missing = [refusal for refusal in refused if refusal.missing and not refusal.unlocked_by]
    if unlocked := [refusal for refusal in refused if refusal.unlocked_by]:
        choice = unlocked[0].unlocked_by
        group = choice.partition("=")[0]
        meant = next((refusal for refusal in unlocked if refusal.missing.endswith(f".{group}")), None)
        yield Problem(
            f"the launch line lacks {choice}, without which Hydra refuses {count(len(unlocked), 'override')}:"
            f" {_list_keys(unlocked)}",
            file=(meant or unlocked[0]).leaf.file,
            line=(meant or unlocked[0]).leaf.line,
            hint=f"write {choice}" + (f" in place of {clip(meant.missing, 120)}=…" if meant else ""),
        )
    if missing:
        near = [clip(refusal.near, 120) for refusal in missing if refusal.near]
        yield Problem(
            f"Hydra refuses {count(len(missing), 'override')}: the configuration has no key {_list_keys(missing)}",
            file=missing[0].leaf.file,
            line=missing[0].leaf.line,
            hint=f"write {join_words(list(dict.fromkeys(near)))}"
            if near
            else "correct the key, or write +key=… where the program reads one that its configuration does not have",
        )
    for refusal in [refusal for refusal in refused if not refusal.missing][:MOST]:
        yield Problem(
            f"Hydra refuses an override: {refusal.why}",
            file=refusal.leaf.file,
            line=refusal.leaf.line,
            hint="the job stops before it starts; correct the launch line",
        )


def _list_keys(refusals: Sequence[Refusal]) -> str:
    return join_truncated(list(dict.fromkeys(clip(refusal.missing, 120) for refusal in refusals)), MOST)
