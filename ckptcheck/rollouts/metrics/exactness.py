"""Compares the logprobs of two sides bit for bit, and names the first token where they differ."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ckptcheck.rollouts.rollouts import Rollouts


@dataclass(frozen=True)
class UnequalToken:
    """A token whose logprobs differ, or are not both finite."""

    sequence: int
    position: int
    """Place in its sequence, from 0."""
    token: int
    engine: float
    trainer: float
    ulps: int | None
    """How many floats of `dtype` lie between the two, plus 1; None where one of them is not finite."""
    dtype: str
    """The narrower dtype of the two columns, or float64 where they differ only in digits that it lacks."""


@dataclass(frozen=True)
class Exactness:
    """How many logprobs of both sides are the same number."""

    tokens: int
    """Number of compared tokens."""
    unequal: int
    """Number of tokens whose logprobs are not the same finite number."""
    sequences: int
    """Number of sequences with such a token."""
    first: UnequalToken | None
    """The first such token; None where there is none."""


def compare_exactly(rollouts: Rollouts) -> Exactness:
    """Compare all tokens under the mask. NaN and infinities equal nothing, themselves included; 0 equals -0."""
    import numpy as np

    tokens = unequal = sequences = 0
    first: UnequalToken | None = None
    for block in rollouts.blocks():
        engine, trainer = block.column("engine_logprobs"), block.column("trainer_logprobs")
        differs = block.mask & ~((engine == trainer) & np.isfinite(engine))
        tokens += int(block.mask.sum())
        places = np.flatnonzero(differs)
        if not len(places):
            continue
        unequal += len(places)
        sequences += len(np.unique(block.owners[places]))
        if first is None:
            place = int(places[0])
            ulps, dtype = _count_ulps(engine[place], trainer[place])
            first = UnequalToken(
                int(block.owners[place]), int(block.positions[place]), int(block.column("tokens")[place]),
                float(engine[place]), float(trainer[place]), ulps, dtype,
            )  # fmt: skip
    return Exactness(tokens, unequal, sequences, first)


def _count_ulps(one: Any, other: Any) -> tuple[int | None, str]:
    """Return the distance of two floats in units in the last place, and the dtype that it is counted in."""
    import numpy as np

    narrow = np.result_type(min(one.dtype, other.dtype, key=lambda dtype: dtype.itemsize))
    if not (np.isfinite(one) and np.isfinite(other)):
        return None, narrow.name
    with np.errstate(over="ignore"):
        pair: NDArray[Any] = np.array([one, other], narrow)
    if pair[0] == pair[1] or not np.isfinite(pair).all():
        pair = np.array([one, other], np.float64)
    bits = pair.view(f"i{pair.itemsize}").tolist()
    lowest = -(1 << (8 * pair.itemsize - 1))
    # negative floats count down from the smallest integer: mirror them, so that neighbours are 1 apart
    ranks = [value if value >= 0 else lowest - value for value in bits]
    return abs(ranks[0] - ranks[1]), pair.dtype.name
