"""Where the ladder stands: both sides' logprobs with all changes made so far, and which tokens count."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ckptcheck.attribution.change import EngineChange, TrainerChange
from ckptcheck.rollouts.rollouts import Rollouts

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True)
class State:
    """q, p: the engine's and the trainer's logprobs, float64 [T]. mask: bool [T], tokens that are compared.

    trainer, engine: the changes that are in force.
    """

    q: NDArray[Any] = field(repr=False)
    p: NDArray[Any] = field(repr=False)
    mask: NDArray[np.bool_] = field(repr=False)
    trainer: TrainerChange = field(default_factory=TrainerChange)
    engine: EngineChange = field(default_factory=EngineChange)

    @cached_property
    def apart(self) -> NDArray[Any]:
        """|q - p| of the tokens that are compared and finite on both sides."""
        import numpy as np

        apart = np.abs(self.q - self.p)[self.mask]
        found: NDArray[Any] = apart[np.isfinite(apart)]
        return found

    @cached_property
    def gap(self) -> float:
        """Their mean, in nats; 0 where there is none."""
        return float(self.apart.mean()) if len(self.apart) else 0.0

    def over(self, other: State) -> float:
        """Return the gap over the tokens that another state compares, so that the two can be held against each other."""
        import numpy as np

        apart = np.abs(self.q - self.p)[other.mask & np.isfinite(other.q - other.p)]
        apart = apart[np.isfinite(apart)]
        return float(apart.mean()) if len(apart) else 0.0


def start(rollouts: Rollouts) -> State:
    """Return the state before anything is changed: what was recorded. Both sides' columns have to be there."""
    import numpy as np

    q, p = (np.asarray(rollouts.columns[f"{side}_logprobs"], np.float64) for side in ("engine", "trainer"))
    masks = [block.mask for block in rollouts.blocks()]
    return State(q, p, np.concatenate(masks) if masks else np.zeros(0, bool))
