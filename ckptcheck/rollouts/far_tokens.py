"""Finds the compared tokens that the two sides do not agree on, and stretches of them that hold no logprobs of the token."""

from __future__ import annotations

from dataclasses import dataclass
from math import log
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ckptcheck.rollouts.rollouts import Block, Rollouts

FAR = 0.5
"""Nats from which on two sides do not agree on a token. Rounding in bfloat16 stays below; a filter that keeps one token alone
moves its logprob by -ln(top_p), 0.36 at 0.7."""
LEAST_RUN = 4
"""Fewest equal logprobs one after the other that are no coincidence where they are not 0."""
LEAST_FAR = 4
"""Fewest far tokens at which placeholders are reported."""
FACTOR = 3
"""How much larger the share of far tokens has to be among all tokens with the number than among the others.

With wrong weights an engine's sure tokens (exactly 0) are far from the trainer's as well, and its other tokens are no less far.
"""
CHANCE = 1e-6
"""Probability below which so many far tokens, of all with the number or else of a single stretch, are no chance (Chernoff)."""
LEAST_SHARE = 1e-3
"""Share of far tokens that is assumed of the others where fewer of them are far."""


def find_far_tokens(rollouts: Rollouts) -> NDArray[np.int64]:
    """Return the indices of the compared tokens whose logprobs are finite and further than FAR nats apart, ascending."""
    import numpy as np

    found = [np.zeros(0, np.int64)]
    for block in rollouts.blocks():
        engine, trainer = block.column("engine_logprobs"), block.column("trainer_logprobs")
        with np.errstate(invalid="ignore", over="ignore"):
            far = np.flatnonzero(np.abs(trainer - engine) > FAR)
        if len(far):
            counts = block.mask[far] & np.isfinite(engine[far]) & np.isfinite(trainer[far])
            found.append(far[counts] + block.token_slice.start)
    return np.concatenate(found)


@dataclass(frozen=True)
class PlaceholderRuns:
    """Stretches of compared tokens with one number in place of the logprobs of a side."""

    side: str
    """`engine` or `trainer`."""
    value: float
    """The number."""
    begins: NDArray[np.int64]
    """int64 [runs]: index of the first token of each stretch, ascending."""
    lengths: NDArray[np.int64]
    """int64 [runs]: number of tokens of each stretch."""

    @property
    def indices(self) -> NDArray[np.int64]:
        """int64 [tokens]: the indices of all their tokens, ascending."""
        import numpy as np

        offsets = np.repeat(np.cumsum(self.lengths) - self.lengths, self.lengths)
        return np.repeat(self.begins, self.lengths) + np.arange(int(self.lengths.sum())) - offsets


def find_placeholder_runs(rollouts: Rollouts, side: str, far: NDArray[np.int64]) -> PlaceholderRuns | None:
    """Find stretches of one number, the most frequent one, that hold far tokens; None where there are none.

    far: the indices of all far tokens, ascending. A stretch goes on while tokens follow each other under the mask of one
    sequence; of a number other than 0 it has at least LEAST_RUN tokens.
    """
    import numpy as np

    value = _find_candidate(rollouts.columns[f"{side}_logprobs"], far)
    if value is None:
        return None
    parts: list[NDArray[np.int64]] = []
    compared = same = 0
    for block in rollouts.blocks():
        is_value = (block.column(f"{side}_logprobs") == value) & block.mask
        compared, same = compared + int(block.mask.sum()), same + int(is_value.sum())
        inside = far[np.searchsorted(far, block.token_slice.start) : np.searchsorted(far, block.token_slice.stop)]
        if len(inside):
            starts, ends = (edges + block.token_slice.start for edges in _list_runs(block, is_value))
            held = np.searchsorted(inside, ends) - np.searchsorted(inside, starts)
            parts.append(
                np.stack([starts, ends - starts, held], 1)[
                    (held > 0) & (ends - starts >= (1 if value == 0 else LEAST_RUN))
                ]
            )
    begins, lengths, held = np.concatenate(parts).T
    number = int(held.sum())
    share = (len(far) - number) / max(1, compared - same)
    # how many of the tokens with this number were far if they were as often far as the others
    expected = same * max(share, LEAST_SHARE)
    is_rare = number > expected and number * log(number / expected) - number + expected > -log(CHANCE)
    if not is_rare or number < FACTOR * share * same:
        chosen = _deviate(held, lengths, max(share, LEAST_SHARE))
        begins, lengths, held = begins[chosen], lengths[chosen], held[chosen]
    return PlaceholderRuns(side, value, begins, lengths) if int(held.sum()) >= LEAST_FAR else None


def _deviate(held: NDArray[np.int64], lengths: NDArray[np.int64], share: float) -> NDArray[np.bool_]:
    """Return whether a stretch has so many far tokens by chance with a probability below CHANCE, by Chernoff's bound."""
    import numpy as np

    rate = held / lengths
    with np.errstate(divide="ignore", invalid="ignore"):
        rest = np.where(rate < 1, (1 - rate) * np.log((1 - rate) / (1 - share)), 0)
    exponent = lengths * (rate * np.log(rate / share) + rest)
    return np.asarray((rate > share) & (exponent > np.log(max(1, len(lengths)) / CHANCE)))


def _find_candidate(logprobs: NDArray[Any], far: NDArray[np.int64]) -> float | None:
    """Return 0, or the number that most far tokens share with LEAST_RUN - 1 tokens before them; None without one."""
    import numpy as np

    values = np.asarray(logprobs[far])
    zeros = int(np.count_nonzero(values == 0))
    repeated = np.ones(max(0, len(far) - LEAST_RUN + 1), bool)
    for step in range(1, LEAST_RUN):
        last = len(far) - LEAST_RUN + 1
        repeated &= (values[step : last + step] == values[: max(0, last)]) & (
            far[step : last + step] - far[: max(0, last)] == step
        )
    distinct, counts = np.unique(values[: len(repeated)][repeated & (values[: len(repeated)] != 0)], return_counts=True)
    if zeros >= int(counts.max(initial=0)):
        return 0.0 if zeros >= LEAST_FAR else None
    return float(distinct[counts.argmax()])


def _list_runs(block: Block, chosen: NDArray[np.bool_]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return begin and end of every stretch of chosen tokens of one sequence, counted from the block's first."""
    import numpy as np

    first = block.positions == 0
    before = np.concatenate([[False], chosen[:-1]]) & ~first
    after = np.concatenate([chosen[1:] & ~first[1:], [False]])
    return np.flatnonzero(chosen & ~before), np.flatnonzero(chosen & ~after) + 1
