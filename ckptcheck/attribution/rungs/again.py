"""The control of all that follows: a side scores the same tokens again with nothing changed.

A gap that vanishes here was in the process that wrote the file, and not in what was started now; without this, the first
experiment that asks a side at all would take the credit.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ckptcheck.attribution.rung import Experiment
from ckptcheck.attribution.state import State
from ckptcheck.attribution.world import World


def trainer(world: World, state: State) -> Iterator[Experiment]:
    """Have the trainer score again."""
    about = world.rollouts.metadata.trainer
    heat = state.trainer.temperature or (about.temperature if about is not None else None) or 1.0
    yield Experiment(
        "when the trainer scores again",
        "what scored the file had other weights than the trainer given here, or divided by another temperature than it says",
        "see which checkpoint and which step the recorded logprobs are of",
        replace(state, p=world.trainer(replace(state.trainer, temperature=heat))),
    )


def engine(world: World, state: State) -> Iterator[Experiment]:
    """Have the engine score again, as the job had it."""
    yield Experiment(
        "when the engine scores again",
        "what drew the tokens had other weights than the engine's checkpoint, or keys and values of such: a sync that was "
        "lost, a stale cache, or older weights by design",
        "ckptcheck refit tries the sync, and ckptcheck parity probe the caches; record weight versions to tell a lag",
        replace(state, q=world.engine(state.engine)),
    )
