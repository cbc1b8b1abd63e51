"""Measures what a training step can learn from rollouts: rewards, advantages and lengths, and the groups of one prompt.

Responses to equal prompts are a group, as GRPO compares them (Shao et al. 2024, arXiv:2402.03300).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ckptcheck.rollouts.response_ends import LENGTH_WORDS

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ckptcheck.rollouts.rollouts import Rollouts

SHORTEST_LIMIT = 16
"""Equal lengths of fewer tokens are no limit that cut responses off: they are short answers of one form."""
FEWEST = 8
"""Responses below which equal lengths or rewards may be chance."""


@dataclass(frozen=True)
class LearningSignal:
    """What the sequences of a step that have trained tokens are worth to it. N: number of these sequences."""

    sequences: NDArray[np.int64] = field(repr=False)
    """int64 [N]: their numbers."""
    lengths: NDArray[np.int64] = field(repr=False)
    """int64 [N]: tokens of each response."""
    rewards: NDArray[np.float64] | None = field(repr=False)
    """float64 [N]; NaN where a reward is not known. None: not recorded."""
    lowest: NDArray[np.float64] | None = field(repr=False)
    """float64 [N]: the smallest advantage of a trained token; NaN where one is not finite. None: not recorded."""
    highest: NDArray[np.float64] | None = field(repr=False)
    """float64 [N]: the largest one."""
    broken_tokens: int
    """Trained tokens whose advantage is not finite."""
    groups: tuple[NDArray[np.int64], ...] = field(repr=False)
    """For each prompt with at least two responses: their places among the N."""
    limit: int | None
    """The length of every response, where all have one; None where they differ, or are few or short."""
    cut_off: float | None
    """Share of the responses whose finish reason is their length; None where no finish reason is recorded."""

    @property
    def probably_cut_off(self) -> float:
        """`cut_off`; without finish reasons the share of the responses of the greatest length, if several have it."""
        longest = int((self.lengths == self.lengths.max()).sum())
        return self.cut_off if self.cut_off is not None else longest / len(self.lengths) if longest > 1 else 0.0

    @property
    def silent_groups(self) -> float | None:
        """Share of the groups that teach nothing: by advantages of 0, or else by equal rewards. None without groups."""
        if not self.groups or (self.lowest is None and self.rewards is None):
            return None
        return sum(self.is_silent(group) for group in self.groups) / len(self.groups)

    def is_silent(self, places: Any) -> bool:
        """Whether all advantages of these sequences are 0, or all rewards equal where advantages are not recorded."""
        import numpy as np

        if self.lowest is not None and self.highest is not None:
            return not (np.any(self.lowest[places]) or np.any(self.highest[places]))
        assert self.rewards is not None
        return self.have_equal_rewards(places)

    def have_equal_rewards(self, places: Any) -> bool:
        """Whether all rewards of these sequences are known and equal."""
        return self.rewards is not None and bool((self.rewards[places] == self.rewards[places][0]).all())


def measure_signal(rollouts: Rollouts) -> LearningSignal | None:
    """Measure it; None where no reward and no advantage is known, or no token is trained."""
    import numpy as np

    rewards = rollouts.columns.get("rewards")
    # a NaN in a file stands for an unknown reward
    rewards = None if rewards is None or np.isnan(rewards).all() else rewards
    has_advantages = "advantages" in rollouts
    if rewards is None and not has_advantages:
        return None
    lows, highs, owners_of, broken = [], [], [], 0
    for block in rollouts.blocks():
        indices = np.flatnonzero(block.mask)
        owners = block.owners[indices]
        begins = np.flatnonzero(np.diff(owners, prepend=-1))
        owners_of.append(owners[begins])
        if has_advantages and len(begins):
            values = block.column("advantages")[indices].astype(np.float64)
            finite = np.isfinite(values)
            broken += int(len(values) - np.count_nonzero(finite))
            values[~finite] = np.nan
            lows.append(np.minimum.reduceat(values, begins))
            highs.append(np.maximum.reduceat(values, begins))
    sequences = np.concatenate([np.zeros(0, np.int64), *owners_of])
    if not len(sequences):
        return None
    lengths = (np.diff(rollouts.starts) - rollouts.prompt_lengths)[sequences]
    is_limit = len(lengths) >= FEWEST and lengths[0] >= SHORTEST_LIMIT and (lengths == lengths[0]).all()
    return LearningSignal(
        sequences,
        lengths,
        None if rewards is None else rewards[sequences].astype(np.float64),
        np.concatenate(lows) if lows else None,
        np.concatenate(highs) if highs else None,
        broken,
        _list_groups(rollouts, sequences),
        int(lengths[0]) if is_limit else None,
        _compute_cut_off(rollouts, sequences),
    )


def _list_groups(rollouts: Rollouts, sequences: NDArray[np.int64]) -> tuple[NDArray[np.int64], ...]:
    import numpy as np

    places: dict[bytes, list[int]] = {}
    for place, sequence in enumerate(sequences.tolist()):
        begin, length = int(rollouts.starts[sequence]), int(rollouts.prompt_lengths[sequence])
        if length:
            places.setdefault(rollouts.tokens[begin : begin + length].tobytes(), []).append(place)
    return tuple(np.array(group) for group in places.values() if len(group) > 1)


def _compute_cut_off(rollouts: Rollouts, sequences: NDArray[np.int64]) -> float | None:
    import numpy as np

    finish = rollouts.columns.get("finish")
    if finish is None:
        return None
    words = np.array([word.lower() in LENGTH_WORDS for word in (*rollouts.metadata.finish_reasons, "")])
    # slime's --save-debug-train-data knows of each response only whether it is cut off, so -1 stands for one that is not
    return float(words[finish[sequences]].mean())
