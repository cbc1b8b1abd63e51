"""The framework does not load this critic, or its head has several values for a token.

## What it checks
In a job whose advantages need a critic (GAE):
- the critic's head has one output: ROLL's `num_labels` is 1;
- in ROLL, `model_type` is `trl` or `auto_token_classification`, unless Megatron trains the critic; a critic in Megatron needs a
  version of ROLL that has a value model for it.

## Why it matters
ROLL takes `output[:, :-1].squeeze(-1)` for the values: with five outputs they stay [B, S−1, 5] and do not fit the returns
[B, S−1]. With another `model_type` its provider raises NotImplementedError after all other workers have started.

## How to fix
`num_labels: 1`, and `model_type: auto_token_classification` or `trl`.

## When it can be wrong
Your own worker class may reduce several outputs to one value, or load the critic differently. `--ignore JOB034` silences it.

## Seen in
alibaba/ROLL at 8eb27cc2 (`default_value_model_provider`, `forward_func_values`); the design of ROLL's Megatron critic
"""

from collections.abc import Iterator

from msgspec import structs

from ckptcheck import Problem, rule
from ckptcheck.jobs.job import Job

LOADED = ("trl", "auto_token_classification")
"""The values of model_type with which ROLL's default_value_model_provider loads a critic."""


@rule("JOB034", "unusable-critic", severity="error", on="job", when=lambda job: job.flag("critic.enabled") is True)
def check(job: Job) -> Iterator[Problem]:
    job.require_resolved("critic.backend", "critic.num_labels", "critic.model_type")
    backend, kind = job.text("critic.backend"), job.text("critic.model_type")
    labels = job.number("critic.num_labels")
    in_megatron = backend == "megatron"
    if job.framework == "ROLL" and in_megatron:
        problem = job.problem(
            "the critic trains in Megatron, and ROLL at 8eb27cc2 (August 2026) has no value model for that: it stops with"
            " NotImplementedError",
            at="critic.backend",
            hint="check that default_value_model_provider of your version builds one, or train the critic with deepspeed or fsdp2",
        )
        yield structs.replace(problem, severity="warning")
    elif job.framework == "ROLL" and backend is not None and kind not in LOADED:
        yield job.problem(
            f"the critic's model_type is {job.describe('critic.model_type')}, and ROLL loads a critic only as"
            f" {' or '.join(LOADED)}: it stops with NotImplementedError",
            at="critic.model_type" if job["critic.model_type"].leaf else "critic.backend",
            hint="set critic.model_args.model_type to auto_token_classification or trl",
        )
    if labels is None or labels == 1 or (job.framework == "ROLL" and not in_megatron and kind not in LOADED):
        return  # what nothing loads has no outputs to count
    if job.framework == "ROLL" and kind == "auto_token_classification" and not in_megatron:
        yield job.problem(
            f"the critic's head has {job.describe('critic.num_labels')} outputs: the values stay [B, S−1, {labels:g}] and do not"
            " fit the returns [B, S−1]",
            at="critic.num_labels",
            hint="set num_labels to 1",
        )
    else:
        loader = (
            "its value head in Megatron" if in_megatron else "TRL's value head" if kind == "trl" else "verl's critic"
        )
        problem = job.problem(
            f"num_labels is {job.describe('critic.num_labels')}, which has no effect: {loader} has one output whatever it says",
            at="critic.num_labels",
            hint="remove num_labels",
        )
        yield structs.replace(problem, severity="warning")
