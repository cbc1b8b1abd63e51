"""Rollouts of a real engine, with no trainer anywhere near: what `ckptcheck parity record` writes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import isfinite

from ckptcheck.engines.base import Engine
from ckptcheck.engines.sampling import Generation, Sampling
from ckptcheck.host.patience import within
from ckptcheck.rollouts import Metadata, Rollout, Rollouts, Side, gathered
from ckptcheck.rollouts import Sampling as Drawn

Tokens = tuple[int, ...]


def record(
    engine: Engine,
    prompts: Sequence[Tokens],
    sampling: Sampling,
    metadata: Metadata,
    *,
    batch: int = 8,
    timeout: float | None = None,
    advance: Callable[[int, int], None] | None = None,
) -> Rollouts:
    """Have the engine answer every prompt, `batch` at a time, and return what it said.

    A seed is counted up from prompt to prompt. timeout: seconds for each batch. advance: told how many of how many are done.
    """
    made: list[Generation] = []
    for begin in range(0, len(prompts), batch):
        asked = prompts[begin : begin + batch]
        with within(timeout):
            made += engine.generate(asked, [seeded(sampling, begin + place) for place in range(len(asked))])
        if advance is not None:
            advance(len(made), len(prompts))
    return gathered(
        (rollout(prompt, each) for prompt, each in zip(prompts, made, strict=True)),
        described(engine, metadata, sampling),
    )


def seeded(sampling: Sampling, place: int) -> Sampling:
    """Return the sampling of one request."""
    return sampling if sampling.seed is None else replace(sampling, seed=sampling.seed + place)


def rollout(prompt: Tokens, made: Generation) -> Rollout:
    """Return a response as a row. A logprob that JSON could not say is NaN, and judged as such."""
    values = [value if value is not None and isfinite(value) else float("nan") for value in made.logprobs]
    return Rollout((*prompt, *made.tokens), len(prompt), engine=values, versions=made.versions, finish=made.finish)


def described(engine: Engine, metadata: Metadata, sampling: Sampling) -> Metadata:
    """Return the metadata with the engine and the sampling in them."""
    import msgspec

    info = engine.info
    layout = f"TP{info.ranks}" if info.ranks > 1 else ""
    return msgspec.structs.replace(
        metadata,
        engine=Side(info.name, info.version, info.dtype, layout, facts=dict(info.facts)),
        sampling=Drawn(sampling.temperature, sampling.top_p, sampling.top_k, sampling.max_tokens, sampling.seed),
        sampled_by="engine",
    )
