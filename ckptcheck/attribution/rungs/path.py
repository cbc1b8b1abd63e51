"""How the engine computed the same tokens: what its caches held, step by step or at once, with whom."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ckptcheck.attribution.change import EngineChange
from ckptcheck.attribution.rung import Experiment
from ckptcheck.attribution.state import State
from ckptcheck.attribution.world import World


def _again(world: World, state: State, change: EngineChange, words: str, cause: str, hint: str) -> Iterator[Experiment]:
    yield Experiment(words, cause, hint, replace(state, q=world.engine(change), engine=change))


def caches(world: World, state: State) -> Iterator[Experiment]:
    """Score again with caches emptied."""
    return _again(
        world, state, replace(state.engine, fresh=True), "with caches emptied before each sequence",
        "keys and values of older weights were still in the engine's cache",
        "reset the prefix cache after every weight update (reset_prefix_cache, flush_cache)",
    )  # fmt: skip


def decoding(world: World, state: State) -> Iterator[Experiment]:
    """Score again by prefill."""
    return _again(
        world, state, replace(state.engine, path="prefill"), "when the engine scores by prefill",
        "its decoding computes something else than its prefill",
        "try another attention backend, and graphs, chunked prefill and speculative decoding off",
    )  # fmt: skip


def batch(world: World, state: State) -> Iterator[Experiment]:
    """Score each sequence by itself."""
    return _again(
        world, state, replace(state.engine, alone=True), "with each sequence alone",
        "what the engine computes depends on who else is in the batch",
        "use batch-invariant kernels, or a fixed batch size on both sides",
    )  # fmt: skip
