"""Every number about the gap between an engine's and a trainer's logprobs, in one pass over blocks of whole sequences.

Notation: t runs over the tokens that are compared (N of them), q is the engine's logprob, p the trainer's, r = p - q. Where the
tokens were drawn from the trainer, the ratio and the KL estimates are taken the other way round, for an estimate of
KL(a ‖ b) wants samples of a. A pair of which either is not finite is counted in `broken` and enters nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ckptcheck.metrics.sums import Sums

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ckptcheck.rollouts.rollouts import Rollouts

PERCENTILES = (50.0, 90.0, 99.0, 99.9)
CLIP = 0.2
"""PPO's usual clip range: the ratio is kept within 1 - 0.2 and 1 + 0.2 (Schulman et al. 2017, section 3)."""
ESS_BOUND = 2.0
"""verl's default of `rollout_is_threshold`."""
WORST = 10


@dataclass(frozen=True)
class Place:
    """One token: its sequence, its position in it from 0, its id, and both logprobs."""

    sequence: int
    position: int
    token: int
    engine: float
    trainer: float

    @property
    def apart(self) -> float:
        """|r|, in nats."""
        return abs(self.trainer - self.engine)


@dataclass(frozen=True)
class Gap:
    """The numbers. All logprobs are natural, so KL and differences are in nats.

    mult_prob_error: mean exp|r|, 1 is perfect (NeMo-RL `token_mult_prob_error`, loss_functions.py; its docs' equation).
    k1, k2, k3: estimates of KL(sampled from ‖ other), with l = log(other / sampled from): mean -l, mean l²/2, mean e^l - 1 - l
    (Schulman, "Approximating KL Divergence", 2020; NeMo-RL `calculate_kl`, verl rollout_corr/kl and k3_kl, prime-rl mismatch_kl).
    ratio: mean e^l, the policy ratio. clipped: share of e^l outside 1 ± CLIP. chi2: mean e^(2l) - 1 (verl chi2_token).
    ess: 1 / mean(w²) of w = e^l clamped to [1/2, 2] and divided by its mean; a share in (0, 1] (verl rollout_is_eff_sample_size).
    abs_mean, abs_max, percentiles: of |r|; percentiles are interpolated linearly, from |r| in float32.
    abs_sequence_mean: mean over sequences of their mean |r| (slime and miles train_rollout_logprob_abs_diff).
    prob_diff_*: of |e^p - e^q|; std of the population (verl rollout_probs_diff; *probabilities*, not logprobs).
    pearson: of e^q and e^p, None where either does not vary (verl rollout_actor_probs_pearson_corr).
    engine_mean, trainer_mean: mean logprobs. broken: pairs left out because one is not finite.
    sequence_*: one number a sequence: tokens compared, mean |r|, mean exp|r|; NaN where nothing was compared.
    profile: per power of two of the place in the response, from 0: (first place, tokens, mean |r|, mean r).
    """

    tokens: int
    sequences: int
    broken: int
    mult_prob_error: float
    k1: float
    k2: float
    k3: float
    ratio: float
    clipped: float
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
    profile: tuple[tuple[int, int, float, float], ...] = field(repr=False)
    worst: tuple[Place, ...] = field(repr=False)

    @property
    def deviation(self) -> float:
        """(ratio - 1) × 10⁴, as PipelineRL plots it."""
        return (self.ratio - 1) * 1e4

    def numbers(self) -> dict[str, float | int | None]:
        """Return what can be written as a flat record; floors are kept under the same names."""
        names = (
            "tokens", "sequences", "broken", "mult_prob_error", "k1", "k2", "k3", "ratio", "clipped", "chi2", "ess",
            "abs_mean", "abs_max", "abs_sequence_mean", "prob_diff_mean", "prob_diff_max", "prob_diff_std", "pearson",
            "engine_mean", "trainer_mean",
        )  # fmt: skip
        record: dict[str, float | int | None] = {name: getattr(self, name) for name in names}
        return record | {f"abs_p{name:g}": value for name, value in self.percentiles.items()}


def gap(rollouts: Rollouts, one: str = "engine", other: str = "trainer") -> Gap | None:
    """Compare two columns of logprobs under the response mask; None where no pair of finite numbers could be compared.

    one, other: which sides; `trainer` and `reference` for the first step. Memory: 4 bytes a token, and a few MB.
    """
    sums = Sums(rollouts, swapped=rollouts.metadata.sampled_by == "trainer")
    for block in rollouts.blocks():
        sums.add(block, f"{one}_logprobs", f"{other}_logprobs")
    return sums.gap() if sums.tokens else None


def mean_of_directions(one: Gap, other: Gap) -> float:
    """Return the mean of the two mult_prob_errors, for tokens drawn from the engine and for tokens drawn from the trainer.

    Source: NeMo-RL, docs/adding-new-models.md: the stricter guarantee, since an engine that lacks support for a token never
    draws it. Raises ValueError when both were drawn from the same side.
    """
    if one.sampled_by == other.sampled_by:
        raise ValueError(f"both were drawn from the {one.sampled_by}")
    return (one.mult_prob_error + other.mult_prob_error) / 2
