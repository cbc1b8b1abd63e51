"""The engine's context is too short for a prompt and its response.

## What it checks
max_model_len (SGLang: context_length) is at least the longest prompt plus the longest response, and at most what the
checkpoint's config.json allows. Where no setting bounds the context, the checkpoint's max_position_embeddings does.

## Why it matters
- verl refuses to start.
- Other frameworks let the engine cut responses short or refuse long prompts; the reward then judges a cut-off text. Unless a
  response alone is longer than the context, that is a warning.
- vLLM refuses a max_model_len beyond max_position_embeddings.

## How to fix
Raise max_model_len, or lower the lengths of prompt and response.

## When it can be wrong
Prompts are always much shorter than the longest that the job allows.

## Seen in
verl's rollout workers ("max_model_len should be greater than total sequence length"), NeMo-RL's diagnostics
(1.max_model_len_respected)
"""

import math
from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.jobs.job import Job


@rule(
    "JOB014",
    "context-too-short",
    severity="error",
    on="job",
    when=lambda job: job["engine.max_model_len"].status != "unknown" or _model_context(job) is not None,
)
def check(job: Job) -> Iterator[Problem]:
    job.require_resolved("engine.max_model_len", "rollout.prompt_length", "rollout.response_length")
    length, context = job.number("engine.max_model_len"), _model_context(job)
    prompt, response = job.number("rollout.prompt_length"), job.number("rollout.response_length")
    if response is not None and (prompt or 0) + response > (length or context or math.inf):
        parts = f"a response of up to {job.describe('rollout.response_length')} tokens"
        if prompt:
            parts = f"a prompt of up to {job.describe('rollout.prompt_length')} and {parts}"
        model = job.checkpoints["checkpoint.model"].named if length is None else ""
        place = job["engine.max_model_len"].place if length else f"max_position_embeddings of {model}"
        yield job.problem(
            f"the engine's context has {length or context:g} tokens ({place}), too few for {parts}",
            at="engine.max_model_len" if length else "rollout.response_length",
            hint="raise max_model_len, or lower the lengths" if length else "lower the lengths, or scale the positions",
            # Only verl adds the two up itself; elsewhere a job runs as long as its prompts are shorter than they may be.
            severity=None if length and (job.framework == "verl" or response > length) else "warning",
        )
    if length and context is not None and length > context:
        yield job.problem(
            f"the engine's context has {length:g} tokens ({job['engine.max_model_len'].place}), and max_position_embeddings of"
            f" {job.checkpoints['checkpoint.model'].named} is {context}",
            at="engine.max_model_len",
            hint="lower max_model_len, or say how positions are scaled",
        )


def _model_context(job: Job) -> int | None:
    """Return max_position_embeddings of the engine's model, which bounds a context that no setting does."""
    checkpoint = job.checkpoints.get("checkpoint.model")
    return checkpoint.context if checkpoint is not None else None
