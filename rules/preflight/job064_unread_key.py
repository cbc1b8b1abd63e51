"""A setting of the job is read nowhere: it changes nothing.

## What it checks
No key that the job sets is one that the framework's configuration takes, and that no line of its code reads in the version that the
job runs with. Such keys are left over from removed features, or were never wired up. Values that are the default, or ask for
nothing (`false`, `null`), are not reported, and neither are jobs whose program is not the framework's own.

A key that the framework's own examples set is an info.

## Why it matters
The job starts, and does not do what the file says: `actor_rollout_ref.actor.freeze_vision_tower=True` trains the vision tower.

## How to fix
Take the key out. If the job needs what it says, look for what replaced it in the framework's release notes.

## When it can be wrong
A plugin or a patched framework reads the key: `--ignore JOB064`.

## Seen in
The sources of verl to 1dda039b9 (`over_sample_rate`, which its rollout.yaml explains and nothing has read since 0.7.0), NeMo-RL to
7ea279abf (`loss_fn.ratio_eps_min`, which became `ratio_clip_min`), SkyRL to a9564572e, AReaL to cbff54d64, ROLL to 8eb27cc2,
open-instruct to e6c3044aa (`use_peft`: the flags of adapters have no effect), PipelineRL to 58d3934 (`aggregate_loss`, with
which its own deepscaler15b.yaml asks for a mean), ms-swift to 3602360a5 (`kl_coef`, which
its PPO alone hands on to TRL: GRPO takes `beta`), slime to 624b824a8 and miles to 31f1ca961, release by release
(fixtures/learn_unread_keys.py); AReaL's keys that later versions read again are left out.
TRL at f2cd57710, OpenRLHF at 3c3be6234 and prime-rl at 559b44772 read every key of their own.
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.document import clip
from ckptcheck.jobs.job import Job, shown


@rule("JOB064", "unread-key", severity="warning", on="job", when=lambda job: bool(job.unread_keys))
def check(job: Job) -> Iterator[Problem]:
    for key in job.unread_keys:
        value = (key.leaf.reason and "a value") or shown(key.leaf.value)
        yield job.problem_at(
            key.leaf,
            f"{clip(key.leaf.key)} is {value}, and {key.owner} reads it nowhere",
            "take it out, or set what replaced it",
            "info" if key.in_examples else None,
        )
