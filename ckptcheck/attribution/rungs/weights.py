"""The engine's weights against the trainer's: bytes first, then what a cold start from the trainer's takes away."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ckptcheck.attribution.rung import Experiment
from ckptcheck.attribution.state import State
from ckptcheck.attribution.world import World
from ckptcheck.phrase import count, few


def tried(world: World, state: State) -> Iterator[Experiment]:
    """Start the engine from the trainer's weights, where bytes differ."""
    differing = world.weights()
    if not differing:
        return
    change = replace(state.engine, cold=True)
    yield Experiment(
        "with the engine started from the trainer's weights",
        f"{count(len(differing), 'tensor differs', 'tensors differ')}: {few(differing)}",
        "ckptcheck refit says how the sync lost them, ckptcheck diff how a conversion did",
        replace(state, q=world.engine(change), engine=change),
    )
