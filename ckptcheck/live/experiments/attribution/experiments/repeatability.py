"""The control for later experiments: a side scores the same tokens again with nothing changed.

A gap that vanishes here comes from the process that wrote the file, and not from the side that ckptcheck starts. Without this
control, the first experiment that uses a side would count as the cause.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ckptcheck.live.experiments.attribution.backend import Backend
from ckptcheck.live.experiments.attribution.experiment import Trial
from ckptcheck.live.experiments.attribution.state import SearchState


def trainer(backend: Backend, state: SearchState) -> Iterator[Trial]:
    """Have the trainer score again."""
    trainer_info = backend.rollouts.metadata.trainer
    temperature = state.trainer.temperature or (trainer_info.temperature if trainer_info is not None else None) or 1.0
    yield Trial(
        "when the trainer scores again",
        "what scored the file had other weights than the trainer given here, or divided by another temperature than it says",
        "see which checkpoint and which step the recorded logprobs are of",
        replace(state, p=backend.trainer(replace(state.trainer, temperature=temperature))),
    )


def engine(backend: Backend, state: SearchState) -> Iterator[Trial]:
    """Have the engine score again as in the job."""
    yield Trial(
        "when the engine scores again",
        "what drew the tokens had other weights than the engine's checkpoint, or keys and values of such: a sync that was "
        "lost, a stale cache, or older weights by design",
        "ckptcheck refit tries the sync, and ckptcheck parity probe the caches; record weight versions to tell a lag",
        replace(state, q=backend.engine(state.engine)),
    )
