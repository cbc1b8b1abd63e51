"""What experiments can be made: recorded rollouts allow some, a trainer and an engine that run allow more."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from ckptcheck.attribution.change import EngineChange, TrainerChange
from ckptcheck.rollouts.rollouts import Rollouts

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Unable(Exception):
    """An experiment cannot be made here. The message is the end of a sentence."""


class World(Protocol):
    """Rollouts that both sides have scored, and the sides as far as they are there.

    bos: the token that an engine may put before a prompt, None where there is none.
    """

    rollouts: Rollouts
    bos: int | None

    def trainer(self, change: TrainerChange) -> NDArray[Any]:
        """Return the trainer's logprobs, float64 [T], NaN where there is none. Raises Unable."""
        ...

    def engine(self, change: EngineChange) -> NDArray[Any]:
        """Return the engine's logprobs of the same tokens, float64 [T], NaN where there is none. Raises Unable."""
        ...

    def weights(self) -> tuple[str, ...]:
        """Return the tensors in which the engine is not what the trainer holds; () where the bytes are equal. Raises Unable."""
        ...

    def config(self) -> tuple[str, ...]:
        """Return what their configs say differently (``rope_theta 10000, and 500000 in the trainer``). Raises Unable."""
        ...
