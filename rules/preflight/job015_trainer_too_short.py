"""The trainer takes shorter sequences than the rollouts can be.

## What it checks
The longest sequence that the trainer takes is at least the longest prompt and response together, or the engine's context where
the longest prompt is not told.

## Why it matters
What is longer is cut or dropped, after it was paid for: the reward belongs to text that is not trained on. verl stops with an
assertion at the first such batch.

## How to fix
Raise the trainer's length, or lower max_model_len.

## When it can be wrong
If no rollout gets that long.

## Seen in
prime-rl (seq_len), PipelineRL (finetune.seq_length), verl (ppo_max_token_len_per_gpu with use_dynamic_bsz)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.preflight.job import Job


@rule(
    "JOB015",
    "trainer-too-short",
    severity="warning",
    on="job",
    when=lambda job: job["trainer.max_length"].status != "unknown",
)
def check(job: Job) -> Iterator[Problem]:
    job.need("trainer.max_length", "rollout.prompt_length", "rollout.response_length", "engine.max_model_len")
    most = job.number("trainer.max_length")
    prompt, response = job.number("rollout.prompt_length"), job.number("rollout.response_length")
    context = job.number("engine.max_model_len")
    if most is None:
        return
    if prompt is not None and response is not None:
        longest, what = prompt + response, f"prompt and response have up to {prompt + response:g} tokens"
        if context is not None and context < longest:
            longest, what = context, f"the engine's context has {job.said('engine.max_model_len')} tokens"
    elif context is not None:
        longest, what = context, f"the engine's context has {job.said('engine.max_model_len')} tokens"
    elif response is not None:
        longest, what = response, f"a response alone has up to {job.said('rollout.response_length')} tokens"
    else:
        return
    if most < longest:
        yield job.problem(
            f"the trainer takes sequences of {most:g} tokens ({job['trainer.max_length'].place}), and {what}",
            at="trainer.max_length",
            hint="raise the trainer's length",
        )
