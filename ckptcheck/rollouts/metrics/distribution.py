"""Computes from whole distributions what sampled tokens cannot show: the exact KL, and a temperature."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ckptcheck.rollouts.rollouts import Rollouts


NUMBERS = 1 << 21
"""Numbers of distributions that are processed at a time, which bounds the memory."""


@dataclass(frozen=True)
class ExactKL:
    """The exact KL in both directions, and the entropy of both sides, as means over positions, in nats."""

    positions: int
    """Number of positions."""
    engine_trainer: float
    """KL(engine ‖ trainer)."""
    trainer_engine: float
    """KL(trainer ‖ engine)."""
    engine_entropy: float
    trainer_entropy: float


def exact(q: NDArray[Any], p: NDArray[Any]) -> ExactKL:
    """Return KL(engine ‖ trainer) = Σ e^q (q - p), the reverse, and entropies, over full-vocabulary logprobs [positions, ids].

    q, p: of the engine and of the trainer. An id of probability 0 on one side adds nothing to the sum that this side's
    probabilities weigh, and infinity to the other sum.
    """
    import numpy as np

    sums, step = [0.0] * 4, max(1, NUMBERS // max(1, q.shape[-1]))
    for begin in range(0, len(q), step):
        one, other = (x[begin : begin + step].astype(np.float64) for x in (q, p))
        sums[0] += _kl(one, other)
        sums[1] += _kl(other, one)
        # the entropy is minus the KL to logprobs of 0
        sums[2] -= _kl(one, np.zeros_like(one))
        sums[3] -= _kl(other, np.zeros_like(other))
    positions = len(q)
    return ExactKL(positions, *(each / max(1, positions) for each in sums))


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


def measure_mass(logprobs: NDArray[Any], ids: NDArray[Any] | None = None) -> tuple[float, float]:
    """Return the smallest and the largest log Σ e^x over rows [positions, numbers]: 0 for whole distributions, at most 0 for parts.

    ids: those of the numbers, where a negative one stands for no number. Both are infinite where a row has NaN, or no number.
    """
    import numpy as np

    least, most, step = inf, -inf, max(1, NUMBERS // max(1, logprobs.shape[-1]))
    for begin in range(0, len(logprobs), step):
        rows = logprobs[begin : begin + step].astype(np.float64)
        if ids is not None:
            present = ids[begin : begin + step] >= 0
            rows = np.where(present, rows, -np.inf)[present.any(1)]
        if rows.size:
            sums = _log_sum(rows)
            sums = np.where(np.isnan(sums), inf, sums)
            least, most = min(least, float(sums.min())), max(most, float(sums.max()))
    return (inf, inf) if most == inf else (least, most) if most > -inf else (0.0, 0.0)


def compare_drawn_tokens(rollouts: Rollouts, side: str) -> NDArray[np.float64]:
    """Return |Δ| of a side's logprob of each drawn token and of the same token in its top k, where that has it. At most SAMPLE."""
    import numpy as np

    parts, number = [np.zeros(0)], 0
    for block in rollouts.blocks():
        indices = np.flatnonzero(block.mask)
        tokens = block.column("tokens")[indices]
        rows, places = np.nonzero(block.column(f"{side}_top_ids")[indices] == tokens[:, None])
        listed = block.column(f"{side}_top_logprobs")[indices][rows, places].astype(np.float64)
        parts.append(np.abs(listed - block.column(f"{side}_logprobs")[indices][rows]))
        number += len(listed)
        if number >= SAMPLE:
            break
    return np.concatenate(parts)


def compute_exact_kl(rollouts: Rollouts) -> ExactKL | None:
    """Return the exact KL where full-vocabulary logprobs of both sides are recorded, else None."""
    q, p = (rollouts.columns.get(f"{side}_full_logprobs") for side in ("engine", "trainer"))
    return exact(q, p) if q is not None and p is not None and q.shape == p.shape and q.size else None


@dataclass(frozen=True)
class Temperature:
    """The temperature for which the trainer's logits, divided by it, fit the engine's best."""

    temperature: float
    before: float
    """Mean |difference| of logits at temperature 1."""
    after: float
    """Mean |difference| of logits at the fitted temperature."""
    pairs: int
    """Number of compared pairs of logprobs, less one for each position."""


def temperature(ids: NDArray[Any], q: NDArray[Any], other_ids: NDArray[Any], p: NDArray[Any]) -> Temperature | None:
    """Fit the temperature between two sets of top-k logprobs [positions, k]; None for fewer than 16 common pairs.

    ids, q: of the engine. other_ids, p: of the trainer. The difference between the logprobs of two ids does not contain the
    normaliser, so log-softmax(x / T) changes it only by the factor 1/T. Hence the least-squares slope of the engine's differences
    on the trainer's is 1/T, whatever lies outside of the top k.
    """
    import numpy as np

    same = (ids[:, :, None] == other_ids[:, None, :]) & (ids[:, :, None] >= 0)
    rows, mine, theirs = np.nonzero(same)
    a, b = q[rows, mine].astype(np.float64), p[rows, theirs].astype(np.float64)
    finite = np.isfinite(a) & np.isfinite(b)
    return _fit_slope(rows[finite], a[finite], b[finite])


def _fit_slope(rows: NDArray[Any], a: NDArray[Any], b: NDArray[Any]) -> Temperature | None:
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


def fit_temperature(rollouts: Rollouts) -> Temperature | None:
    """Fit the temperature from full-vocabulary logprobs (a sample of many positions), else from the top k; None without either."""
    import numpy as np

    columns = rollouts.columns
    q, p = (columns.get(f"{side}_full_logprobs") for side in ("engine", "trainer"))
    if q is not None and p is not None and q.shape == p.shape:
        sampled_rows = np.linspace(0, len(q) - 1, max(1, min(len(q), NUMBERS // max(1, q.shape[1])))).astype(int)
        rows = np.repeat(np.arange(len(sampled_rows)), q.shape[1])
        a, b = (np.asarray(x[sampled_rows], np.float64).ravel() for x in (q, p))
        finite = np.isfinite(a) & np.isfinite(b)
        return _fit_slope(rows[finite], a[finite], b[finite])
    top = [columns.get(f"{side}_top_{what}") for side in ("engine", "trainer") for what in ("ids", "logprobs")]
    if any(part is None for part in top):
        return None
    masked = (
        np.concatenate([block.mask for block in rollouts.blocks()]) if rollouts.sequence_count else np.zeros(0, bool)
    )
    indices = np.flatnonzero(masked)[:SAMPLE]
    ids, logprobs, other_ids, other = (np.asarray(part[indices]) for part in top if part is not None)
    return temperature(ids, logprobs, other_ids, other)


SAMPLE = 1 << 16
"""Most tokens from which a temperature is fitted, far more than a fit needs."""
