"""The interface of experiments on a gap: recorded rollouts answer some of them, a running trainer and engine more.

A change is one difference from the user's job in how a side scores.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

from ckptcheck.linter.rule import Skip
from ckptcheck.rollouts.rollouts import Rollouts

if TYPE_CHECKING:
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
    context: int | None = None
    """How many preceding tokens each token is computed from; None: all."""
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
