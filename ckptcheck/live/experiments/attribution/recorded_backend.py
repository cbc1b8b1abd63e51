"""A backend with recorded rollouts alone, for experiments that need no forward pass: they shift or leave out tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ckptcheck.live.experiments.attribution.backend import NotAvailable
from ckptcheck.live.experiments.attribution.change import EngineChange, TrainerChange
from ckptcheck.rollouts.rollouts import Rollouts

if TYPE_CHECKING:
    from numpy.typing import NDArray


class RecordedBackend:
    """Recorded rollouts without a running side.

    Experiments can try temperatures where the trainer's distributions are recorded for every compared token.
    """

    def __init__(self, rollouts: Rollouts) -> None:
        self.rollouts = rollouts
        self.bos: int | None = None

    def trainer(self, change: TrainerChange) -> NDArray[Any]:
        """Compute logprobs from the trainer's recorded distributions. Raises NotAvailable for what needs a forward pass."""
        import numpy as np

        from ckptcheck.rollouts.metrics.sampling_distribution import processed

        positions, table = (self.rollouts.columns.get(name) for name in ("full_positions", "trainer_full_logprobs"))
        plain = TrainerChange(change.temperature, change.top_p, change.top_k)
        if change != plain or positions is None or table is None:
            raise NotAvailable("no trainer is given, and its distributions are not recorded")
        logprobs = np.full(len(self.rollouts.tokens), np.nan)
        rows = processed(np.asarray(table, np.float64), change.temperature or 1.0, change.top_p, change.top_k)
        logprobs[positions] = rows[np.arange(len(positions)), self.rollouts.tokens[positions]]
        return logprobs

    def engine(self, change: EngineChange) -> NDArray[Any]:
        """Raise NotAvailable."""
        raise NotAvailable("no engine is given")

    def weights(self) -> tuple[str, ...]:
        """Raise NotAvailable."""
        raise NotAvailable("no engine is given")

    def config(self) -> tuple[str, ...]:
        """Raise NotAvailable."""
        raise NotAvailable("no engine is given")
