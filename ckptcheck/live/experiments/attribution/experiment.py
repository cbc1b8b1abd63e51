"""Experiments on a gap: each tests one possible cause in one or more trials, and the search goes on from the best."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from ckptcheck.live.experiments.attribution.backend import Backend, EngineChange, TrainerChange
from ckptcheck.live.experiments.experiment import Experiment
from ckptcheck.rollouts.rollouts import Rollouts

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Layer = Literal["objective", "weights", "semantics", "path", "precision", "routing"]


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


@dataclass(frozen=True)
class Trial:
    """One change that an experiment tries, and the state of the search after it."""

    description: str
    """``at T = 0.7``: follows "x % of the gap vanishes" in the message."""
    cause: str
    """Names the fault, for the case that the gap vanishes."""
    hint: str
    """What the user should do then."""
    state: SearchState = field(repr=False)
    """The state with the change applied."""
    only_drops_tokens: bool = False
    """The change only leaves tokens out, which lowers any gap; it counts only if the remaining gap is at the floor."""
    is_fitted: bool = False
    """The change has a number that was chosen for the best fit, so it has to explain more to count."""


@dataclass(frozen=True)
class GapExperiment(Experiment[[Backend, SearchState], Iterator[Trial]]):
    """A test of one possible cause."""

    layer: Layer
    """The layer that a cause found by this experiment belongs to."""
    needs: str = ""
    """The column of rollouts without which the experiment is left out, because few models have what it is about; "": none."""
