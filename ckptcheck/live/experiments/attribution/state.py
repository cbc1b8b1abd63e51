"""The state of a search: both sides' logprobs with all changes so far, and the tokens that are compared."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ckptcheck.live.experiments.attribution.change import EngineChange, TrainerChange
from ckptcheck.rollouts.rollouts import Rollouts

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True)
class SearchState:
    """The logprobs of both sides under the changes that the search has kept."""

    q: NDArray[Any] = field(repr=False)
    """The engine's logprobs, float64 [T]."""
    p: NDArray[Any] = field(repr=False)
    """The trainer's logprobs, float64 [T]."""
    mask: NDArray[np.bool_] = field(repr=False)
    """Bool [T]: True for tokens that are compared."""
    trainer: TrainerChange = field(default_factory=TrainerChange)
    engine: EngineChange = field(default_factory=EngineChange)

    @cached_property
    def abs_diff(self) -> NDArray[Any]:
        """|q - p| in nats of the compared tokens that are finite on both sides."""
        import numpy as np

        abs_diff = np.abs(self.q - self.p)[self.mask]
        finite_diff: NDArray[Any] = abs_diff[np.isfinite(abs_diff)]
        return finite_diff

    @cached_property
    def gap(self) -> float:
        """The mean of `abs_diff`, in nats; 0 without tokens."""
        return float(self.abs_diff.mean()) if len(self.abs_diff) else 0.0

    def gap_over(self, other: SearchState) -> float:
        """Return the gap over the tokens that another state compares, so that the two gaps are comparable."""
        import numpy as np

        abs_diff = np.abs(self.q - self.p)[other.mask & np.isfinite(other.q - other.p)]
        abs_diff = abs_diff[np.isfinite(abs_diff)]
        return float(abs_diff.mean()) if len(abs_diff) else 0.0


def initial_state(rollouts: Rollouts) -> SearchState:
    """Return the recorded state, before any change. The rollouts need the logprobs of both sides."""
    import numpy as np

    q, p = (np.asarray(rollouts.columns[f"{side}_logprobs"], np.float64) for side in ("engine", "trainer"))
    masks = [block.mask for block in rollouts.blocks()]
    return SearchState(q, p, np.concatenate(masks) if masks else np.zeros(0, bool))
