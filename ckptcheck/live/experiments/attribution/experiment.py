"""Experiments on a gap: each tests one possible cause in one or more trials, and the search goes on from the best.

A change is one difference from the user's job in how a side scores. Recorded rollouts answer some changes, a running trainer and
engine more: a `Backend`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, Protocol

from ckptcheck.linter.rule import Skip
from ckptcheck.rollouts.rollouts import Rollouts

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class TrainerChange:
    """A change of how the trainer scores the recorded tokens."""

    temperature: float | None = None
    """The trainer divides the logits by it before it computes logprobs; None: the recorded temperature."""
    top_p: float = 1.0
    top_k: int = 0
    """top_p and top_k truncate the distribution before logprobs are computed; 1 and 0: off."""
    drop: int = 0
    """How many tokens are removed from the beginning of each sequence."""
    prepend: tuple[int, ...] = ()
    """Token ids that are added before each sequence."""
    dtype: str | None = None
    """Compute dtype; None: the job's."""
    head_fp32: bool = False
    """Computes the output head in float32."""


@dataclass(frozen=True, slots=True)
class EngineChange:
    """A change of how the engine scores the recorded tokens."""

    path: Literal["", "prefill"] = ""
    """How the engine scores the tokens again; "": by decoding, as the job drew them."""
    fresh: bool = False
    """The engine empties its caches before each batch."""
    alone: bool = False
    """The engine scores each sequence by itself."""
    dtype: str | None = None
    """Compute dtype; None: the job's."""
    head_fp32: bool = False
    """Computes the output head in float32."""
    cold: bool = False
    """The engine starts from the trainer's weights."""
    config: bool = False
    """The engine starts with the trainer's config."""


class Backend(Protocol):
    """Rollouts with the logprobs of both sides, and access to those sides that are available."""

    rollouts: Rollouts
    bos: int | None
    """The BOS token that an engine may put before a prompt; None where the model has none."""

    def trainer(self, change: TrainerChange) -> NDArray[Any]:
        """Return the trainer's logprobs, float64 [T], NaN where it has none. Raises Skip."""
        ...

    def engine(self, change: EngineChange) -> NDArray[Any]:
        """Return the engine's logprobs of the same tokens, float64 [T], NaN where it has none. Raises Skip."""
        ...

    def weights(self) -> tuple[str, ...]:
        """Return the tensors in which the engine differs from the trainer; () where the bytes are equal. Raises Skip."""
        ...

    def config(self) -> tuple[str, ...]:
        """Return how the two configs differ (``rope_theta 10000, and 500000 in the trainer``). Raises Skip."""
        ...


class RecordedBackend:
    """Recorded rollouts without a running side.

    Experiments can try temperatures where the trainer's distributions are recorded for every compared token.
    """

    def __init__(self, rollouts: Rollouts) -> None:
        self.rollouts = rollouts
        self.bos: int | None = None

    def trainer(self, change: TrainerChange) -> NDArray[Any]:
        """Compute logprobs from the trainer's recorded distributions. Raises Skip for what needs a forward pass."""
        import numpy as np

        from ckptcheck.rollouts.metrics.sampling_distribution import processed

        positions, table = (self.rollouts.columns.get(name) for name in ("full_positions", "trainer_full_logprobs"))
        plain = TrainerChange(change.temperature, change.top_p, change.top_k)
        if change != plain or positions is None or table is None:
            raise Skip("no trainer is given, and its distributions are not recorded")
        logprobs = np.full(len(self.rollouts.tokens), np.nan)
        rows = processed(np.asarray(table, np.float64), change.temperature or 1.0, change.top_p, change.top_k)
        logprobs[positions] = rows[np.arange(len(positions)), self.rollouts.tokens[positions]]
        return logprobs

    def engine(self, change: EngineChange) -> NDArray[Any]:
        """Raise Skip."""
        raise Skip("no engine is given")

    def weights(self) -> tuple[str, ...]:
        """Raise Skip."""
        raise Skip("no engine is given")

    def config(self) -> tuple[str, ...]:
        """Raise Skip."""
        raise Skip("no engine is given")


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
class GapExperiment:
    """A test of one possible cause."""

    name: str
    """Its name in tables."""
    run: Callable[[Backend, SearchState], Iterator[Trial]] = field(repr=False)
    """Yields the trials. Raises Skip where it cannot run."""
    layer: Layer
    """The layer that a cause found by this experiment belongs to."""
    needs: str = ""
    """The column of rollouts without which the experiment is left out, because few models have what it is about; "": none."""
