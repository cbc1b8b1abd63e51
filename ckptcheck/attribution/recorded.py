"""What rollout files alone allow: no experiment that needs a forward, but those that reorder or leave out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ckptcheck.attribution.change import EngineChange, TrainerChange
from ckptcheck.attribution.world import Unable
from ckptcheck.rollouts.rollouts import Rollouts

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Recorded:
    """Rollouts. Where the trainer's whole distributions are recorded for every token compared, temperatures can be tried."""

    def __init__(self, rollouts: Rollouts) -> None:
        self.rollouts = rollouts
        self.bos: int | None = None

    def trainer(self, change: TrainerChange) -> NDArray[Any]:
        """Make logprobs of the trainer's recorded distributions. Raises Unable for what needs a forward."""
        import numpy as np

        from ckptcheck.metrics.processed import processed

        positions, table = (self.rollouts.columns.get(name) for name in ("full_positions", "trainer_full_logprobs"))
        plain = TrainerChange(change.temperature, change.top_p, change.top_k)
        if change != plain or positions is None or table is None:
            raise Unable("no trainer is given, and its distributions are not recorded")
        made = np.full(len(self.rollouts.tokens), np.nan)
        rows = processed(np.asarray(table, np.float64), change.temperature or 1.0, change.top_p, change.top_k)
        made[positions] = rows[np.arange(len(positions)), self.rollouts.tokens[positions]]
        return made

    def engine(self, change: EngineChange) -> NDArray[Any]:
        """Raise Unable."""
        raise Unable("no engine is given")

    def weights(self) -> tuple[str, ...]:
        """Raise Unable."""
        raise Unable("no engine is given")

    def config(self) -> tuple[str, ...]:
        """Raise Unable."""
        raise Unable("no engine is given")
