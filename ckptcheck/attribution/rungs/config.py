"""The two sides' configs: the same weights are another model under another rope_theta or rms_norm_eps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ckptcheck.attribution.rung import Experiment
from ckptcheck.attribution.state import State
from ckptcheck.attribution.world import World


def tried(world: World, state: State) -> Iterator[Experiment]:
    """Start the engine with the trainer's config, where the two differ."""
    differing = world.config()
    if not differing:
        return
    change = replace(state.engine, config=True)
    yield Experiment(
        "with the trainer's config",
        f"the engine's says {'; '.join(differing[:3])}",
        "give the engine the config that the weights were trained with",
        replace(state, q=world.engine(change), engine=change),
    )
