"""The interface that experiments use. Recorded rollouts answer some of its requests, a running trainer and engine more."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from ckptcheck.live.experiments.attribution.change import EngineChange, TrainerChange
from ckptcheck.rollouts.rollouts import Rollouts

if TYPE_CHECKING:
    from numpy.typing import NDArray


class NotAvailable(Exception):
    """Raised where an experiment cannot run. The message says why, as a clause without capital and full stop."""


class Backend(Protocol):
    """Rollouts with the logprobs of both sides, and access to those sides that are available."""

    rollouts: Rollouts
    bos: int | None
    """The BOS token that an engine may put before a prompt; None where the model has none."""

    def trainer(self, change: TrainerChange) -> NDArray[Any]:
        """Return the trainer's logprobs, float64 [T], NaN where it has none. Raises NotAvailable."""
        ...

    def engine(self, change: EngineChange) -> NDArray[Any]:
        """Return the engine's logprobs of the same tokens, float64 [T], NaN where it has none. Raises NotAvailable."""
        ...

    def weights(self) -> tuple[str, ...]:
        """Return the tensors in which the engine differs from the trainer; () where the bytes are equal. Raises NotAvailable."""
        ...

    def config(self) -> tuple[str, ...]:
        """Return how the two configs differ (``rope_theta 10000, and 500000 in the trainer``). Raises NotAvailable."""
        ...
