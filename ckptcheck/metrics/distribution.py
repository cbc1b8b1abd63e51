"""What whole distributions tell that one sampled token cannot: the exact KL, and a temperature."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ckptcheck.rollouts.rollouts import Rollouts


NUMBERS = 1 << 21
"""Numbers of a distribution that are worked on at a time, so that memory is bounded however many there are."""


@dataclass(frozen=True)
class Exact:
    """Means over positions, in nats. mass: the largest | log Σ e^x |, of either side: 0 for logprobs, not for logits.

    It is infinite where a position holds NaN, or no number at all.
    """

    positions: int
    engine_trainer: float
    trainer_engine: float
    mass: float


def exact(q: NDArray[Any], p: NDArray[Any]) -> Exact:
    """Return KL(engine ‖ trainer) = Σ e^q (q - p) and the reverse, over full-vocabulary logprobs [positions, ids].

    An id of probability 0 adds nothing to the sum that it weighs, and infinity to the other one.
    """
    import numpy as np

    sums, mass, step = [0.0, 0.0], 0.0, max(1, NUMBERS // max(1, q.shape[-1]))
    for begin in range(0, len(q), step):
        one, other = (x[begin : begin + step].astype(np.float64) for x in (q, p))
        sums[0] += _kl(one, other)
        sums[1] += _kl(other, one)
        for rows in (one, other):
            off = np.abs(_log_sum(rows))
            mass = max(mass, float(np.where(np.isnan(off), inf, off).max()))
    positions = len(q)
    return Exact(positions, sums[0] / max(1, positions), sums[1] / max(1, positions), mass)


def _kl(a: NDArray[Any], b: NDArray[Any]) -> float:
    import numpy as np

    with np.errstate(invalid="ignore", over="ignore"):
        terms = np.where(a == -np.inf, 0.0, np.exp(a) * (a - b))
    return float(terms.sum())


def _log_sum(x: NDArray[Any]) -> NDArray[Any]:
    import numpy as np

    top = x.max(1, keepdims=True)
    with np.errstate(invalid="ignore", over="ignore"):
        return np.asarray((top + np.log(np.exp(x - top).sum(1, keepdims=True)))[:, 0])


def exact_of(rollouts: Rollouts) -> Exact | None:
    """Return the exact KL where full-vocabulary logprobs of both sides are recorded, else None."""
    q, p = (rollouts.columns.get(f"{side}_full_logprobs") for side in ("engine", "trainer"))
    return exact(q, p) if q is not None and p is not None and q.shape == p.shape and q.size else None


@dataclass(frozen=True)
class Temperature:
    """engine = trainer / temperature fits best; before, after: the mean |difference| of logits at 1 and at that temperature.

    pairs: of logprobs that were compared, one id of each position set aside.
    """

    temperature: float
    before: float
    after: float
    pairs: int


def temperature(ids: NDArray[Any], q: NDArray[Any], other_ids: NDArray[Any], p: NDArray[Any]) -> Temperature | None:
    """Fit the temperature between two sets of top-k logprobs [positions, k]; None where fewer than 16 pairs are in common.

    Differences of two ids' logprobs do not contain the normaliser, so log-softmax(x / T) keeps them but for the factor 1/T.
    Hence the least-squares slope of the engine's differences on the trainer's is 1/T, whatever lies outside of the top k.
    """
    import numpy as np

    same = (ids[:, :, None] == other_ids[:, None, :]) & (ids[:, :, None] >= 0)
    rows, mine, theirs = np.nonzero(same)
    a, b = q[rows, mine].astype(np.float64), p[rows, theirs].astype(np.float64)
    finite = np.isfinite(a) & np.isfinite(b)
    return _fitted(rows[finite], a[finite], b[finite])


def _fitted(rows: NDArray[Any], a: NDArray[Any], b: NDArray[Any]) -> Temperature | None:
    import numpy as np

    _, rows, counts = np.unique(rows, return_inverse=True, return_counts=True)
    pairs = int((counts - 1).sum()) if len(counts) else 0
    if pairs < 16:
        return None
    with np.errstate(over="ignore", invalid="ignore"):
        da, db = (x - (np.bincount(rows, x) / counts)[rows] for x in (a, b))
        cross, square = float((da * db).sum()), float((db * db).sum())
    slope = cross / square if 0 < cross < inf and 0 < square < inf else 0.0
    if not slope:
        return None
    before, after = float(np.abs(da - db).mean()), float(np.abs(da - slope * db).mean())
    return Temperature(1 / slope, before, after, pairs)


def temperature_of(rollouts: Rollouts) -> Temperature | None:
    """Fit the temperature from full-vocabulary rows, some of them where there are many; else from the top k; else None."""
    import numpy as np

    columns = rollouts.columns
    q, p = (columns.get(f"{side}_full_logprobs") for side in ("engine", "trainer"))
    if q is not None and p is not None and q.shape == p.shape:
        few = np.linspace(0, len(q) - 1, max(1, min(len(q), NUMBERS // max(1, q.shape[1])))).astype(int)
        rows = np.repeat(np.arange(len(few)), q.shape[1])
        a, b = (np.asarray(x[few], np.float64).ravel() for x in (q, p))
        finite = np.isfinite(a) & np.isfinite(b)
        return _fitted(rows[finite], a[finite], b[finite])
    top = [columns.get(f"{side}_top_{what}") for side in ("engine", "trainer") for what in ("ids", "logprobs")]
    if any(part is None for part in top):
        return None
    masked = np.concatenate([block.mask for block in rollouts.blocks()]) if rollouts.number else np.zeros(0, bool)
    chosen = np.flatnonzero(masked)[:SAMPLE]
    ids, logprobs, other_ids, other = (np.asarray(part[chosen]) for part in top if part is not None)
    return temperature(ids, logprobs, other_ids, other)


SAMPLE = 1 << 16
"""Tokens from which a temperature is fitted: far more than it takes."""
