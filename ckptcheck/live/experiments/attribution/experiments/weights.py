"""Compares the weights of both sides byte by byte, then starts the engine from the trainer's weights."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ckptcheck.live.experiments.attribution.backend import Backend
from ckptcheck.live.experiments.attribution.experiment import Trial
from ckptcheck.live.experiments.attribution.state import SearchState
from ckptcheck.text.formatting import count, join_truncated


def tried(backend: Backend, state: SearchState) -> Iterator[Trial]:
    """Start the engine from the trainer's weights, where bytes differ."""
    differing_tensors = backend.weights()
    if not differing_tensors:
        return
    change = replace(state.engine, cold=True)
    yield Trial(
        "with the engine started from the trainer's weights",
        f"{count(len(differing_tensors), 'tensor differs', 'tensors differ')}: {join_truncated(differing_tensors)}",
        "ckptcheck refit says how the sync lost them, ckptcheck diff how a conversion did",
        replace(state, q=backend.engine(change), engine=change),
    )
