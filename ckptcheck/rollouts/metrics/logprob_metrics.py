"""Computes every metric of the gap between an engine's and a trainer's logprobs, in one pass over blocks of whole sequences.

Notation: t runs over the N compared tokens, q is the engine's logprob, p the trainer's, r = p - q. Where the trainer drew the
tokens, the ratio and the KL estimates have the opposite direction, because an estimate of KL(a ‖ b) needs samples of a. A pair
with a logprob that is not finite is counted in `broken` and enters no other metric.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf, sqrt
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ckptcheck.rollouts.rollouts import Block, Rollouts

PERCENTILES = (50.0, 90.0, 99.0, 99.9)
CLIP = 0.2
"""PPO's usual clip range: the ratio is kept within 1 - 0.2 and 1 + 0.2 (Schulman et al. 2017, section 3)."""


@dataclass(frozen=True)
class ClipBounds:
    """The range in which an objective keeps the ratio: [1 - low, 1 + high]. DAPO's `clip_higher` has a larger high than low."""

    low: float = CLIP
    high: float = CLIP


WEIGHT_BOUND = 2.0
"""verl's default of `rollout_is_threshold`: weights are truncated to it."""
EXPONENT_BOUND = 20.0
"""verl's SAFETY_BOUND of log ratios: e^20 is the largest ratio that enters chi2."""
WORST = 10
"""Number of tokens with the largest |r| that the metrics list."""


@dataclass(frozen=True)
class TokenGap:
    """One token: its sequence, its position in the sequence from 0, its id, and both logprobs."""

    sequence: int
    position: int
    token: int
    engine: float
    trainer: float

    @property
    def abs_diff(self) -> float:
        """|r|, in nats."""
        return abs(self.trainer - self.engine)


@dataclass(frozen=True)
class Moments:
    """Sums and extremes over all compared tokens, of r = p - q and l (r, or -r where the trainer drew the tokens)."""

    squares: float
    """Mean r²."""
    inverse: float
    """Mean e^-l."""
    divergence: float
    """Mean log cosh(r / 2): the Jensen-Shannon divergence as NeMo-RL estimates it."""
    weight: float
    """Mean of w = e^l truncated to 2."""
    weight_squares: float
    """Mean w²."""
    abs_min: float
    """Smallest |r|."""
    log_min: float
    """Smallest l."""
    log_max: float
    """Largest l."""
    logprob_min: float
    """Smallest logprob of either side."""
    logprob_max: float
    """Largest logprob of either side."""
    places: int
    """One more than the largest place in a response."""


@dataclass(frozen=True)
class LogprobMetrics:
    """The metrics of a gap. All logprobs are natural logarithms, so KL and differences are in nats.

    mult_prob_error: mean exp|r|, 1 is perfect (NeMo-RL `token_mult_prob_error`, loss_functions.py; its docs' equation).
    k1, k2, k3: estimates of KL(sampled from ‖ other), with l = log(other / sampled from): mean -l, mean l²/2, mean e^l - 1 - l
    (Schulman, "Approximating KL Divergence", 2020; NeMo-RL `calculate_kl`, verl rollout_corr/kl and k3_kl, prime-rl mismatch_kl).
    ratio: mean e^l, the policy ratio. chi2: mean e^(2l) - 1, with l kept within ±20 (verl chi2_token).
    clip: the bounds of the ratio. clipped: share of tokens whose e^l is outside of them; clipped_low, clipped_high: below, above.
    clamp_log_ratio: mean over sequences of their share of clipped tokens (PipelineRL clamp_log_ratio_new_old_indicator of its
    PPO loss, finetune/rl/__init__.py). clipped_sequences: share of sequences whose e^(mean l), GSPO's ratio, is outside (the same
    indicator of PipelineRL's GSPO loss; Zheng et al. 2025, arXiv:2507.18071, equation 7).
    ess: 1 / mean(w²) of w = e^l truncated to 2 and divided by its mean; a share in (0, 1] (verl rollout_is_eff_sample_size since
    0.8.0, d2916f5 of March 2026; until 0.7.1 w was also kept above 1/2).
    abs_mean, abs_max, percentiles: of |r|; percentiles are interpolated linearly, from |r| in float32.
    abs_sequence_mean: mean over sequences of their mean |r| (slime and miles train_rollout_logprob_abs_diff).
    prob_diff_*: of |e^p - e^q|; std of the sample, 0 of one token (verl rollout_probs_diff; *probabilities*, not logprobs).
    pearson: of e^q and e^p, None where either does not vary (verl rollout_actor_probs_pearson_corr).
    engine_mean, trainer_mean: mean logprobs. broken: pairs left out because one is not finite.
    sequence_*: one number a sequence: tokens compared, mean |r|, mean exp|r|, mean q, mean p; NaN where nothing was compared.
    moments: what only the names of single frameworks need, see framework_metrics.py.
    profile: for each power of two of the position in the response, from 0: (first position, tokens, mean |r|, mean r).
    worst: the tokens with the largest |r|, the largest first.
    pieces: [3, cuts], of the tokens from one cut to the next: how many are compared, their sum of |r|, and of r; None without cuts.
    """

    tokens: int
    sequences: int
    broken: int
    mult_prob_error: float
    k1: float
    k2: float
    k3: float
    ratio: float
    clip: ClipBounds
    clipped: float
    clipped_low: float
    clipped_high: float
    clamp_log_ratio: float
    clipped_sequences: float
    chi2: float
    ess: float
    abs_mean: float
    abs_max: float
    abs_sequence_mean: float
    percentiles: Mapping[float, float]
    prob_diff_mean: float
    prob_diff_max: float
    prob_diff_std: float
    pearson: float | None
    engine_mean: float
    trainer_mean: float
    sampled_by: str
    sequence_tokens: NDArray[np.int64] = field(repr=False)
    sequence_abs: NDArray[np.float64] = field(repr=False)
    sequence_error: NDArray[np.float64] = field(repr=False)
    sequence_engine: NDArray[np.float64] = field(repr=False)
    sequence_trainer: NDArray[np.float64] = field(repr=False)
    moments: Moments = field(repr=False)
    profile: tuple[tuple[int, int, float, float], ...] = field(repr=False)
    worst: tuple[TokenGap, ...] = field(repr=False)
    pieces: NDArray[np.float64] | None = field(default=None, repr=False)

    @property
    def deviation(self) -> float:
        """(ratio - 1) × 10⁴, as PipelineRL plots it."""
        return (self.ratio - 1) * 1e4

    def numbers(self) -> dict[str, float | int | None]:
        """Return the scalar metrics by name; a floor stores its values under the same names."""
        names = (
            "tokens", "sequences", "broken", "mult_prob_error", "k1", "k2", "k3", "ratio", "clipped", "clipped_low",
            "clipped_high", "clamp_log_ratio", "clipped_sequences", "chi2", "ess", "abs_mean", "abs_max", "abs_sequence_mean",
            "prob_diff_mean", "prob_diff_max", "prob_diff_std", "pearson", "engine_mean", "trainer_mean",
        )  # fmt: skip
        record: dict[str, float | int | None] = {name: getattr(self, name) for name in names}
        return record | {f"abs_p{name:g}": value for name, value in self.percentiles.items()}


def compute_metrics(
    rollouts: Rollouts,
    one: str = "engine",
    other: str = "trainer",
    clip: ClipBounds | None = None,
    cuts: NDArray[np.int64] | None = None,
) -> LogprobMetrics | None:
    """Compare two columns of logprobs under the response mask; None where no pair of logprobs is finite.

    one, other: the two sides, such as `trainer` and `reference` for the first step. clip: the bounds of the ratio; None: those
    that the metadata record, else 0.2. cuts: int64, sorted, indices of tokens: where `pieces` begin.
    Memory: 4 bytes a token and a few MB.
    """
    sums = _MetricSums(
        rollouts, clip or recorded_clip(rollouts), cuts, swapped=rollouts.metadata.sampled_by == "trainer"
    )
    for block in rollouts.blocks():
        sums.add(block, f"{one}_logprobs", f"{other}_logprobs")
    return sums.to_metrics() if sums.tokens else None


def recorded_clip(rollouts: Rollouts) -> ClipBounds:
    """Return the bounds of the ratio that the metadata record, and 0.2 where they record none."""
    low, high = rollouts.metadata.clip_low, rollouts.metadata.clip_high
    return ClipBounds(CLIP if low is None else low, CLIP if high is None else high)


def average_directions(one: LogprobMetrics, other: LogprobMetrics) -> float:
    """Return the mean of the two mult_prob_errors, for tokens drawn from the engine and for tokens drawn from the trainer.

    Source: NeMo-RL, docs/adding-new-models.md: the stricter guarantee, since an engine that lacks support for a token never
    draws it. Raises ValueError when both were drawn from the same side.
    """
    if one.sampled_by == other.sampled_by:
        raise ValueError(f"both were drawn from the {one.sampled_by}")
    return (one.mult_prob_error + other.mult_prob_error) / 2


LOG_2 = 0.6931471805599453
MOST_BINS = 64
"""Most powers of two in a profile."""
LARGEST = 3.4e38
"""Close to the largest float32. It replaces larger differences, because percentiles cannot be interpolated with infinity."""


class _MetricSums:
    """Adds up the sums of the metrics block by block. swapped: the trainer drew the tokens.

    Sums are float64 and taken in the order of the file, so that results are reproducible.
    """

    def __init__(self, rollouts: Rollouts, clip: ClipBounds, cuts: NDArray[np.int64] | None, *, swapped: bool) -> None:
        import numpy as np

        self._rollouts, self._clip, self._swapped = rollouts, clip, swapped
        self._cuts = cuts
        self._pieces = np.zeros((3, len(cuts))) if cuts is not None else None
        self.tokens = self._broken = 0
        self._of: dict[str, float] = {}
        self._max = {
            "abs": 0.0,
            "prob": 0.0,
            "-abs": -inf,
            "-log": -inf,
            "log": -inf,
            "-logprob": -inf,
            "logprob": -inf,
        }
        self._places = 1
        self._kept = np.empty(len(rollouts.tokens), np.float32)
        number = rollouts.sequence_count
        self._counts = np.zeros(number, np.int64)
        self._abs, self._error, self._signed, self._engine, self._clipped = (np.zeros(number) for _ in range(5))
        self._bins = np.zeros((3, MOST_BINS))
        self._worst: list[TokenGap] = []

    def add(self, block: Block, one: str, other: str) -> None:
        """Add the tokens of a block. one, other: the names of the two columns."""
        import numpy as np

        indices = np.flatnonzero(block.mask)
        q, p = (block.column(name)[block.mask].astype(np.float64) for name in (one, other))
        finite = np.isfinite(q) & np.isfinite(p)
        if not finite.all():
            self._broken += int(len(finite) - finite.sum())
            indices, q, p = indices[finite], q[finite], p[finite]
        if not len(indices):
            return
        with np.errstate(over="ignore", under="ignore", divide="ignore", invalid="ignore"):
            r = p - q
            abs_diff = np.abs(r)
            error, clipped = self._add(q, p, r)
            self._by_place(block, indices, abs_diff, r, error, clipped)
            self._by_sequence(block, indices, q)
            self._kept[self.tokens : self.tokens + len(indices)] = np.minimum(abs_diff, LARGEST)
        self.tokens += len(indices)
        self._max["abs"] = max(self._max["abs"], float(abs_diff.max()))
        self._max["-abs"] = max(self._max["-abs"], -float(abs_diff.min()))
        self._max["-logprob"] = max(self._max["-logprob"], -float(q.min()), -float(p.min()))
        self._max["logprob"] = max(self._max["logprob"], float(q.max()), float(p.max()))
        self._note_worst(block, indices, q, p, abs_diff)

    def _add(self, q: NDArray[Any], p: NDArray[Any], r: NDArray[Any]) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        """Add to the sums over tokens, and return of each token exp|r|, and whether its ratio is clipped."""
        import numpy as np

        log = -r if self._swapped else r
        rho = np.exp(log)
        inverse = 1 / rho
        error = np.maximum(rho, inverse)
        weight = np.minimum(rho, WEIGHT_BOUND)
        least, largest = float(log.min()), float(log.max())
        self._max["-log"], self._max["log"] = max(self._max["-log"], -least), max(self._max["log"], largest)
        bounded = rho if largest <= EXPONENT_BOUND else np.exp(np.minimum(log, EXPONENT_BOUND))
        # 1 - e^x instead of e^x leaves the correlation unchanged, and avoids cancellation between near-certain tokens
        u, v = 1 - np.exp(q), 1 - np.exp(p)
        distance = np.abs(u - v)
        self._max["prob"] = max(self._max["prob"], float(distance.max()))
        sums = {
            "q": q, "p": p, "log": log, "k3": np.expm1(log) - log, "rho": rho, "inverse": inverse, "weight": weight,
            "divergence": np.abs(log) / 2 + np.log1p(np.minimum(rho, inverse)) - LOG_2, "prob": distance, "u": u, "v": v,
        }  # fmt: skip
        products = {
            "square": (log, log), "rho2": (bounded, bounded), "weight2": (weight, weight), "prob2": (distance, distance),
            "uu": (u, u), "vv": (v, v), "uv": (u, v),
        }  # fmt: skip
        for name, values in sums.items():
            self._of[name] = self._of.get(name, 0.0) + float(values.sum())
        above, below = rho > 1 + self._clip.high, rho < 1 - self._clip.low
        for name, outside in (("above", above), ("below", below)):
            self._of[name] = self._of.get(name, 0.0) + int(np.count_nonzero(outside))
        # einsum makes no copy, and unlike dot its result does not depend on the number of threads
        for name, (one, other) in products.items():
            self._of[name] = self._of.get(name, 0.0) + float(np.einsum("i,i->", one, other))
        return np.asarray(error), above | below

    def _by_place(
        self,
        block: Block,
        indices: NDArray[Any],
        abs_diff: NDArray[Any],
        r: NDArray[Any],
        error: NDArray[Any],
        clipped: NDArray[np.bool_],
    ) -> None:
        """Add to the sums of each sequence, and of each power of two of the position in the response.

        Tokens of one sequence and one power of two are adjacent, so each such run is summed first, and there are few runs.
        """
        import numpy as np

        # Bins of the places 0, 1, 2-3, 4-7, …
        longest = int(block.lengths.max())
        begins, counts, owners, bins = block.split(indices, [0, *(1 << bit for bit in range(longest.bit_length()))])
        if self._cuts is not None:
            cuts = self._cuts - block.token_slice.start
            cuts = cuts[np.searchsorted(cuts, 0) : np.searchsorted(cuts, indices[-1], "right")]
            finer = np.union1d(begins, np.searchsorted(indices, cuts))
            run = np.searchsorted(begins, finer, "right") - 1
            begins, counts, owners, bins = finer, np.diff(finer, append=len(indices)), owners[run], bins[run]
        summed = [np.add.reduceat(values, begins) for values in (abs_diff, r, error)]
        if self._cuts is not None and self._pieces is not None:
            piece = np.searchsorted(self._cuts, indices[begins] + block.token_slice.start, "right") - 1
            for row, values in enumerate((counts, summed[0], summed[1])):
                np.add.at(self._pieces[row], piece[piece >= 0], values[piece >= 0])
        number, part = block.last - block.first, slice(block.first, block.last)
        self._counts[part] = np.bincount(owners, counts, number)
        self._abs[part] = np.bincount(owners, summed[0], number)
        self._error[part] = np.bincount(owners, summed[2], number)
        self._signed[part] = np.bincount(owners, summed[1], number)
        if clipped.any():
            self._clipped[part] = np.bincount(owners, np.add.reduceat(clipped.astype(np.intp), begins), number)
        for row, weights in enumerate((counts, summed[0], summed[1])):
            self._bins[row] += np.bincount(bins, weights, MOST_BINS)

    def _by_sequence(self, block: Block, indices: NDArray[Any], q: NDArray[Any]) -> None:
        """Add to each sequence's sum of the engine's logprobs, and note the last place that is compared."""
        import numpy as np

        begins, counts, sequences, _ = block.split(indices)
        sequences = block.first + sequences
        self._engine[sequences] += np.add.reduceat(q, begins)
        prompts = block.rollouts.starts[sequences] + block.rollouts.prompt_lengths[sequences]
        last = indices[begins + counts - 1] + block.token_slice.start
        self._places = max(self._places, int((last - prompts).max()) + 1)

    def _note_worst(
        self, block: Block, indices: NDArray[Any], q: NDArray[Any], p: NDArray[Any], abs_diff: NDArray[Any]
    ) -> None:
        import numpy as np

        if len(self._worst) == WORST and float(abs_diff.max()) <= self._worst[-1].abs_diff:
            return
        # of equal gaps at the edge the earlier tokens count, so that a report is reproducible
        edge = np.partition(abs_diff, -WORST)[-WORST] if len(abs_diff) > WORST else 0.0
        for index in np.flatnonzero(abs_diff >= edge)[: 10 * WORST].tolist():
            block_index = int(indices[index])
            token = int(block.column("tokens")[block_index])
            gap = TokenGap(
                int(block.owners[block_index]),
                int(block.positions[block_index]),
                token,
                float(q[index]),
                float(p[index]),
            )
            self._worst.append(gap)
        self._worst = sorted(self._worst, key=lambda gap: -gap.abs_diff)[:WORST]

    def to_metrics(self) -> LogprobMetrics:
        """Return the metrics of the sums, to which at least one token was added."""
        import numpy as np

        number = self.tokens
        mean = {name: value / number for name, value in self._of.items()}
        mean |= {"abs": float(self._abs.sum()) / number, "error": float(self._error.sum()) / number}
        quantiles = _interpolate(self._kept[:number])
        with np.errstate(invalid="ignore", divide="ignore"):
            sequence_abs, sequence_error = self._abs / self._counts, self._error / self._counts
            sequence_engine, sequence_signed = self._engine / self._counts, self._signed / self._counts
        compared = self._counts > 0
        with np.errstate(over="ignore"):
            means = self._signed[compared] / self._counts[compared]
            ratios = np.exp(-means if self._swapped else means)
        outside = (ratios > 1 + self._clip.high) | (ratios < 1 - self._clip.low)
        filled = np.flatnonzero(self._bins[0])
        counts, sums, signed = self._bins[:, filled]
        return LogprobMetrics(
            tokens=number,
            sequences=int(compared.sum()),
            broken=self._broken,
            mult_prob_error=mean["error"],
            k1=-mean["log"],
            k2=mean["square"] / 2,
            k3=mean["k3"],
            ratio=mean["rho"],
            clip=self._clip,
            clipped=mean["above"] + mean["below"],
            clipped_low=mean["below"],
            clipped_high=mean["above"],
            clamp_log_ratio=float((self._clipped[compared] / self._counts[compared]).mean()),
            clipped_sequences=float(outside.mean()),
            chi2=mean["rho2"] - 1,
            ess=mean["weight"] * mean["weight"] / mean["weight2"] if mean["weight2"] else 0.0,
            abs_mean=mean["abs"],
            abs_max=self._max["abs"],
            abs_sequence_mean=float(sequence_abs[compared].mean()),
            percentiles=dict(zip(PERCENTILES, quantiles, strict=True)),
            prob_diff_mean=mean["prob"],
            prob_diff_max=self._max["prob"],
            prob_diff_std=_sample_deviation(mean["prob"], mean["prob2"], number),
            pearson=_pearson(mean),
            engine_mean=mean["q"],
            trainer_mean=mean["p"],
            sampled_by="trainer" if self._swapped else "engine",
            sequence_tokens=self._counts,
            sequence_abs=sequence_abs,
            sequence_error=sequence_error,
            sequence_engine=sequence_engine,
            sequence_trainer=sequence_engine + sequence_signed,
            moments=Moments(
                squares=mean["square"],
                inverse=mean["inverse"],
                divergence=mean["divergence"],
                weight=mean["weight"],
                weight_squares=mean["weight2"],
                abs_min=-self._max["-abs"],
                log_min=-self._max["-log"],
                log_max=self._max["log"],
                logprob_min=-self._max["-logprob"],
                logprob_max=self._max["logprob"],
                places=self._places,
            ),
            profile=tuple(
                (0 if not bin_ else 1 << (bin_ - 1), int(count), total / count, r / count)
                for bin_, count, total, r in zip(
                    filled.tolist(), counts.tolist(), sums.tolist(), signed.tolist(), strict=True
                )
            ),
            worst=tuple(self._worst),
            pieces=self._pieces,
        )


def _interpolate(values: NDArray[np.float32]) -> list[float]:
    """Return the percentiles of some numbers, whose order it changes: the results of numpy.percentile, which imports numpy.ma."""
    last = len(values) - 1
    places = [last * (percent / 100) for percent in PERCENTILES]
    values.partition(sorted({min(int(place) + step, last) for place in places for step in (0, 1)}))
    found = []
    for place in places:
        low, high = values[int(place)], values[min(int(place) + 1, last)]
        share, distance = place - int(place), float(high - low)
        found.append(float(high) - distance * (1 - share) if share >= 0.5 else float(low) + distance * share)
    return found


def _sample_deviation(mean: float, square: float, number: int) -> float:
    """Return the standard deviation of a sample: mean, square: of its values and of their squares. 0 for one value."""
    if not square < inf:
        return inf
    return sqrt(max(0.0, square - mean * mean) * number / (number - 1)) if number > 1 else 0.0


def _pearson(mean: dict[str, float]) -> float | None:
    # u * u and not u ** 2: where the result is too large, a power raises OverflowError and a product is infinite
    first, second = mean["uu"] - mean["u"] * mean["u"], mean["vv"] - mean["v"] * mean["v"]
    if not (1e-18 < first < inf and 1e-18 < second < inf):
        return None
    return max(-1.0, min(1.0, (mean["uv"] - mean["u"] * mean["v"]) / (sqrt(first) * sqrt(second))))
