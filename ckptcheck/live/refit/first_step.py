"""What a trial may record beside its own checks: the first step of a job, on both sides, with weights that a sync has brought."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from ckptcheck.live.runtime.engines.base import Engine
from ckptcheck.live.runtime.trainers.base import Trainer

if TYPE_CHECKING:
    from ckptcheck.checkpoint.checkpoint import Checkpoint


class FirstStep(Protocol):
    """Records the first step: the engine answers prompts, and the trainer scores the tokens."""

    context_len: int
    """Tokens of its longest sequence, which the engine has to have room for."""
    sequences: int
    """How many sequences the engine computes at once."""

    def record(self, engine: Engine, trainer: Trainer) -> None:
        """Record it. Raises CkptcheckError."""
        ...


FIRST_STEP_ARGUMENTS = (
    "prompts", "number", "length", "response", "batch", "temperature", "top_p", "top_k", "presence_penalty",
    "frequency_penalty", "repetition_penalty", "seed", "ignore_eos", "step",
)  # fmt: skip
"""Arguments of ``parity record`` that the rollouts of a trial take."""
PlanFirstStep = Callable[["Checkpoint"], FirstStep | None]
"""Plans the first step of a model; None if the model cannot take it."""
