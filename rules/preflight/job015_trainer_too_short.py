"""The trainer takes shorter sequences than the rollouts can be.

## What it checks
The longest sequence that the trainer takes is at least the longest prompt plus the longest response. Where no setting says how
long a prompt may be, it is at least the engine's context.

## Why it matters
The trainer cuts or drops longer sequences after the job has paid for them: the reward belongs to text that is not trained on.
verl stops with an assertion at the first such batch. PipelineRL refuses to start where finetune.seq_length is below
max_model_len, which is an error.

## How to fix
Raise the trainer's length, or lower max_model_len.

## When it can be wrong
No rollout gets that long.

## Seen in
prime-rl (seq_len), PipelineRL (finetune.seq_length; `validate_config` in pipelinerl/launch.py raises), verl
(ppo_max_token_len_per_gpu with use_dynamic_bsz)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.jobs.job import Job

REFUSED = (("PipelineRL", True), ("open-instruct", False))
"""(The framework that stops, whether the engine's context is too long for it or else prompt and response are)."""


@rule(
    "JOB015",
    "trainer-too-short",
    severity="warning",
    on="job",
    when=lambda job: job["trainer.max_length"].status != "unknown",
)
def check(job: Job) -> Iterator[Problem]:
    job.require_resolved(
        "trainer.max_length", "rollout.prompt_length", "rollout.response_length", "engine.max_model_len"
    )
    max_length = job.number("trainer.max_length")
    prompt, response = job.number("rollout.prompt_length"), job.number("rollout.response_length")
    context = job.number("engine.max_model_len")
    if max_length is None:
        return
    if prompt is not None and response is not None:
        longest, reason = prompt + response, f"prompt and response have up to {prompt + response:g} tokens"
        if context is not None and context < longest:
            longest, reason = context, f"the engine's context has {job.describe('engine.max_model_len')} tokens"
    elif context is not None:
        longest, reason = context, f"the engine's context has {job.describe('engine.max_model_len')} tokens"
    elif response is not None:
        longest, reason = response, f"a response alone has up to {job.describe('rollout.response_length')} tokens"
    else:
        return
    if max_length < longest:
        yield job.problem(
            f"the trainer takes sequences of {max_length:g} tokens ({job['trainer.max_length'].place}), and {reason}",
            at="trainer.max_length",
            # Two programs compare them before anything starts: PipelineRL's launcher, and open_instruct/data_loader.py:501.
            severity="error" if (job.framework, longest == context) in REFUSED else None,
            hint="raise the trainer's length",
        )
