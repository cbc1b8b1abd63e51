"""Names the gap as the training framework logs it, so that a number can be held against the run's own curve.

Each table says from which version on the definition holds. What a framework averages over micro-batches, ranks or optimizer steps
is equal to these numbers where there is one of them. Several treat a sequence without a trained token as one whose mean is 0;
these do too, and the metrics of `LogprobMetrics` leave such a sequence out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import sqrt
from typing import TYPE_CHECKING

from ckptcheck.rollouts.metrics.importance_weights import Correction, Weights
from ckptcheck.rollouts.metrics.logprob_metrics import EXPONENT_BOUND, WEIGHT_BOUND, LogprobMetrics

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True)
class FrameworkMetrics:
    """The names of one framework."""

    framework: str
    version: str
    """Where the definitions were read, and since when they hold."""
    metrics: Mapping[str, Callable[[LogprobMetrics], float | None]]
    """The framework's own name → the number."""
    of_weights: Mapping[str, Callable[[Weights], float] | None] = field(default_factory=dict)
    """Names of numbers of the loss's weights → how a job's own weights give them; None: not by what is known of these."""
    assumed: Correction | None = None
    """The correction under which `metrics` has those names."""

    def numbers(
        self, gap: LogprobMetrics, correction: Correction | None = None, weights: Weights | None = None
    ) -> dict[str, float | None]:
        """Return the numbers by the framework's names; None where one is not defined.

        correction, weights: those of the job that trained on the rollouts, where they are known.
        """
        found = {name: compute(gap) for name, compute in self.metrics.items()}
        if correction is None or correction == self.assumed:
            return found
        for name, of_weights in self.of_weights.items():
            found.pop(name, None)
            if of_weights is not None and weights is not None:
                found[name] = of_weights(weights)
        return found


def _perplexity(side: str) -> Callable[[LogprobMetrics], float]:
    def compute(gap: LogprobMetrics) -> float:
        import numpy as np

        with np.errstate(over="ignore"):
            return float(np.exp(-_zero_filled(getattr(gap, side))).mean())

    return compute


def _zero_filled(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return one number a sequence, with 0 for a sequence without a compared token."""
    import numpy as np

    return np.nan_to_num(values, nan=0.0)


def _log_ratios(gap: LogprobMetrics) -> NDArray[np.float64]:
    """Return each sequence's mean of q - p: verl's `log_ppl_diff`."""
    return _zero_filled(gap.sequence_engine) - _zero_filled(gap.sequence_trainer)


def _perplexity_ratio(gap: LogprobMetrics) -> float:
    import numpy as np

    with np.errstate(over="ignore"):
        return float(np.exp(_log_ratios(gap)).mean())


def _chi2_of_sequences(gap: LogprobMetrics) -> float:
    import numpy as np

    sums = -_log_ratios(gap) * gap.sequence_tokens
    return float(np.exp(2 * np.clip(sums, -EXPONENT_BOUND, EXPONENT_BOUND)).mean()) - 1


def _deviation(mean: float, squares: float) -> float:
    return sqrt(max(0.0, squares - mean * mean))


def _sample_deviation_of_abs(gap: LogprobMetrics) -> float | None:
    if gap.tokens < 2:
        return None
    return _deviation(gap.abs_mean, gap.moments.squares) * sqrt(gap.tokens / (gap.tokens - 1))


def _bounded_exponential(log: float) -> float:
    import numpy as np

    return float(np.exp(min(max(log, -EXPONENT_BOUND), EXPONENT_BOUND)))


def _sequence_errors(gap: LogprobMetrics) -> NDArray[np.float64]:
    """Return the mean exp|r| of every sequence with a compared token."""
    import numpy as np

    return gap.sequence_error[~np.isnan(gap.sequence_error)]


VERL = FrameworkMetrics(
    "verl",
    "0.8.0 to 0.9.1: verl/utils/debug/metrics.py, and verl/trainer/ppo/rollout_corr_helper.py with rollout_is=token, threshold 2;"
    " until 0.7.1 the ESS and the std kept weights above 1/2, and mean and max were of weights before they are truncated",
    {
        "training/rollout_probs_diff_max": lambda gap: gap.prob_diff_max,
        "training/rollout_probs_diff_mean": lambda gap: gap.prob_diff_mean,
        "training/rollout_probs_diff_std": lambda gap: gap.prob_diff_std if gap.tokens > 1 else None,
        "training/rollout_actor_probs_pearson_corr": lambda gap: gap.pearson,
        "rollout_corr/kl": lambda gap: gap.k1,
        "rollout_corr/k3_kl": lambda gap: gap.k3,
        "rollout_corr/training_ppl": _perplexity("sequence_trainer"),
        "rollout_corr/training_log_ppl": lambda gap: -float(_zero_filled(gap.sequence_trainer).mean()),
        "rollout_corr/rollout_ppl": _perplexity("sequence_engine"),
        "rollout_corr/rollout_log_ppl": lambda gap: -float(_zero_filled(gap.sequence_engine).mean()),
        "rollout_corr/log_ppl_diff": lambda gap: float(_log_ratios(gap).mean()),
        "rollout_corr/log_ppl_abs_diff": lambda gap: float(abs(_log_ratios(gap)).mean()),
        "rollout_corr/log_ppl_diff_max": lambda gap: float(_log_ratios(gap).max()),
        "rollout_corr/log_ppl_diff_min": lambda gap: float(_log_ratios(gap).min()),
        "rollout_corr/ppl_ratio": _perplexity_ratio,
        "rollout_corr/chi2_token": lambda gap: gap.chi2,
        "rollout_corr/chi2_seq": _chi2_of_sequences,
        "rollout_corr/rollout_is_mean": lambda gap: gap.moments.weight,
        "rollout_corr/rollout_is_max": lambda gap: min(2.0, _bounded_exponential(gap.moments.log_max)),
        "rollout_corr/rollout_is_min": lambda gap: min(2.0, _bounded_exponential(gap.moments.log_min)),
        "rollout_corr/rollout_is_std": lambda gap: _deviation(gap.moments.weight, gap.moments.weight_squares),
        "rollout_corr/rollout_is_eff_sample_size": lambda gap: gap.ess,
    },
    dict.fromkeys(f"rollout_corr/rollout_is_{name}" for name in ("mean", "max", "min", "std", "eff_sample_size")),
    Correction("token", high=WEIGHT_BOUND),
)
SLIME = FrameworkMetrics(
    "slime",
    "624b824, with one sample for each rollout and without calculate_per_token_loss; since 7405851 (May 2026) samples of one"
    " rollout count as one",
    {
        "train/train_rollout_logprob_abs_diff": lambda gap: float(_zero_filled(gap.sequence_abs).mean()),
        "rollout/rollout_log_probs": lambda gap: float(_zero_filled(gap.sequence_engine).mean()),
        "rollout/log_probs": lambda gap: float(_zero_filled(gap.sequence_trainer).mean()),
    },
)
NEMO_RL = FrameworkMetrics(
    "NeMo-RL",
    "7ea279a: nemo_rl/algorithms/loss/loss_functions.py with reference_policy_kl_type k3, grpo.py",
    {
        "token_mult_prob_error": lambda gap: gap.mult_prob_error,
        "gen_kl_error": lambda gap: gap.k3,
        "policy_kl_error": lambda gap: gap.moments.inverse - 1 - gap.k1,
        "js_divergence_error": lambda gap: gap.moments.divergence,
        "sampling_importance_ratio": lambda gap: gap.ratio,
        "max_seq_mult_prob_error": lambda gap: float(_sequence_errors(gap).max()),
        "mean_seq_mult_prob_error": lambda gap: float(_sequence_errors(gap).mean()),
        "min_seq_mult_prob_error": lambda gap: float(_sequence_errors(gap).min()),
    },
    {"sampling_importance_ratio": lambda weights: weights.mean},
    Correction("token"),
)
SKYRL = FrameworkMetrics(
    "SkyRL",
    "0.3.0, a956457: skyrl/train/trainer.py",
    {
        "policy/rollout_train_logprobs_abs_diff_mean": lambda gap: gap.abs_mean,
        "policy/rollout_train_logprobs_abs_diff_max": lambda gap: gap.abs_max,
        "policy/rollout_train_logprobs_abs_diff_min": lambda gap: gap.moments.abs_min,
        "policy/rollout_train_logprobs_abs_diff_std": _sample_deviation_of_abs,
    },
)
TRL = FrameworkMetrics(
    "TRL",
    "1.16.0, f2cd577: trl/trainer/grpo_trainer.py",
    {
        "sampling/sampling_logp_difference/mean": lambda gap: gap.abs_mean,
        "sampling/sampling_logp_difference/max": lambda gap: gap.abs_max,
    },
    {
        "sampling/importance_sampling_ratio/min": lambda weights: weights.least,
        "sampling/importance_sampling_ratio/mean": lambda weights: weights.mean,
        "sampling/importance_sampling_ratio/max": lambda weights: weights.greatest,
    },
)
OPENRLHF = FrameworkMetrics("OpenRLHF", "0.11.2: openrlhf/models/loss.py", {"vllm_kl": lambda gap: gap.k1})
BY_SOURCE = {
    "verl DataProto": VERL,
    "slime or miles --save-debug-train-data": SLIME,
    "NeMo-RL train data": NEMO_RL,
    "SkyRL TrainingInputBatch": SKYRL,
    "TRL batch": TRL,
    "OpenRLHF Experience": OPENRLHF,
}
"""`source` of the metadata → the metrics of the framework that trained on the file."""
