"""Changes how the engine computes the same tokens: with empty caches, by prefill, each sequence alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ckptcheck.live.experiments.attribution.backend import Backend
from ckptcheck.live.experiments.attribution.change import EngineChange
from ckptcheck.live.experiments.attribution.experiment import Trial
from ckptcheck.live.experiments.attribution.state import SearchState


def _score_again(
    backend: Backend, state: SearchState, change: EngineChange, description: str, cause: str, hint: str
) -> Iterator[Trial]:
    """Have the engine score the tokens again under a change."""
    yield Trial(description, cause, hint, replace(state, q=backend.engine(change), engine=change))


def caches(backend: Backend, state: SearchState) -> Iterator[Trial]:
    """Score again with caches emptied."""
    return _score_again(
        backend, state, replace(state.engine, fresh=True), "with caches emptied before each sequence",
        "the engine's cache still held keys and values of older weights",
        "reset the prefix cache after every weight update (reset_prefix_cache, flush_cache)",
    )  # fmt: skip


def decoding(backend: Backend, state: SearchState) -> Iterator[Trial]:
    """Score again by prefill."""
    return _score_again(
        backend, state, replace(state.engine, path="prefill"), "when the engine scores by prefill",
        "its decoding and its prefill compute different logprobs",
        "try another attention backend, and graphs, chunked prefill and speculative decoding off",
    )  # fmt: skip


def batch(backend: Backend, state: SearchState) -> Iterator[Trial]:
    """Score each sequence by itself."""
    return _score_again(
        backend, state, replace(state.engine, alone=True), "with each sequence alone",
        "the engine's results depend on the other requests in the batch",
        "use batch-invariant kernels, or a fixed batch size on both sides",
    )  # fmt: skip
