"""Compares the two configs: with another rope_theta or rms_norm_eps the same weights are another model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ckptcheck.live.experiments.attribution.backend import Backend
from ckptcheck.live.experiments.attribution.experiment import Trial
from ckptcheck.live.experiments.attribution.state import SearchState


def tried(backend: Backend, state: SearchState) -> Iterator[Trial]:
    """Start the engine with the trainer's config where the two configs differ."""
    differences = backend.config()
    if not differences:
        return
    change = replace(state.engine, config=True)
    yield Trial(
        "with the trainer's config",
        f"the engine's says {'; '.join(differences[:3])}",
        "give the engine the config that the weights were trained with",
        replace(state, q=backend.engine(change), engine=change),
    )
