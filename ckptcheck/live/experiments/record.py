"""Records rollouts of a running engine, without a trainer: what `ckptcheck parity record` writes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import isfinite
from typing import TYPE_CHECKING

from ckptcheck.live.experiments.live_session import effective_logprobs
from ckptcheck.live.runtime.engines.base import Generator, Running
from ckptcheck.live.runtime.engines.sampling import Generation, Sampling
from ckptcheck.live.runtime.process.deadlines import time_budget
from ckptcheck.rollouts import Metadata, Rollout, Rollouts, SamplingInfo, ScorerInfo, build_rollouts
from ckptcheck.rollouts.sampling_checkpoint import read_expert_layout

if TYPE_CHECKING:
    from ckptcheck.checkpoint.checkpoint import Checkpoint
    from ckptcheck.live.experiments.default_prompts import DefaultPrompts
    from ckptcheck.live.runtime.engines.engine_options import Switches

Tokens = tuple[int, ...]


def record_rollouts(
    engine: Generator,
    prompts: Sequence[Tokens],
    sampling: Sampling,
    metadata: Metadata,
    *,
    batch: int = 8,
    timeout: float | None = None,
    advance: Callable[[int, int], None] | None = None,
) -> Rollouts:
    """Let the engine answer every prompt, `batch` at a time, and return the rollouts.

    A seed is counted up from prompt to prompt. timeout: seconds for each batch. advance: called with the numbers of
    finished and of all prompts.
    """
    generations: list[Generation] = []
    for begin in range(0, len(prompts), batch):
        batch_prompts = prompts[begin : begin + batch]
        with time_budget(timeout):
            samplings = [sampling_of_prompt(sampling, begin + place) for place in range(len(batch_prompts))]
            generations += engine.generate(batch_prompts, samplings)
        if advance is not None:
            advance(len(generations), len(prompts))
    return build_rollouts(
        (build_rollout(prompt, generation) for prompt, generation in zip(prompts, generations, strict=True)),
        complete_metadata(engine, metadata, sampling),
    )


def sampling_of_prompt(sampling: Sampling, place: int) -> Sampling:
    """Return the sampling of one request: each prompt has its own seed."""
    return sampling if sampling.seed is None else replace(sampling, seed=sampling.seed + place)


def build_rollout(prompt: Tokens, made: Generation) -> Rollout:
    """Build a rollout from a prompt and its response. A logprob that JSON cannot represent becomes NaN, and is judged as NaN."""
    values = [value if value is not None and isfinite(value) else float("nan") for value in made.logprobs]
    return Rollout(
        (*prompt, *made.tokens), len(prompt), engine=values, versions=made.weight_versions, finish=made.finish_reason
    )


def describe_rollouts(
    source: str,
    ckpt: Checkpoint,
    default_prompts: DefaultPrompts,
    engine: Running,
    switches: Switches,
    context_len: int,
    step: int | None,
) -> Metadata:
    """Return what is known of rollouts before the engine answers: of the model, of its logprobs, and of the training step."""
    layout = read_expert_layout(ckpt)
    return Metadata(
        model=source,
        step=step,
        logprobs=effective_logprobs(engine, switches),
        vocabulary=default_prompts.vocabulary,
        max_model_len=context_len,
        experts=None if layout is None else layout.experts,
        stop_tokens=sorted(default_prompts.stop_tokens),
    )


def complete_metadata(engine: Running, metadata: Metadata, sampling: Sampling) -> Metadata:
    """Return the metadata, completed with the engine and the sampling."""
    import msgspec

    info = engine.info
    layout = f"TP{info.ranks}" if info.ranks > 1 else ""
    return msgspec.structs.replace(
        metadata,
        engine=ScorerInfo(info.name, info.version, info.dtype, layout, facts=dict(info.facts)),
        sampling=SamplingInfo(
            sampling.temperature,
            sampling.top_p,
            sampling.top_k,
            sampling.max_tokens,
            sampling.seed,
            sampling.ignore_eos or None,
            sampling.presence_penalty or None,
            sampling.frequency_penalty or None,
            None if sampling.repetition_penalty == 1 else sampling.repetition_penalty,
        ),
        sampled_by="engine",
    )
