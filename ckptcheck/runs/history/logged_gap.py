"""Finds, among what a job logs, how far its trainer's logprobs are from the engine's: the job measures that at every step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import isfinite, sqrt
from typing import Any

from ckptcheck.runs.history.record import GapRecord


@dataclass(frozen=True)
class LoggedGap:
    """One metric of a framework, for tokens that the engine drew."""

    framework: str
    nats: Callable[[float], float]
    """Returns about the mean |Δ| of the logprobs, in nats a token, which makes the metrics comparable: 0 where they agree."""
    ahead: int = 0
    """How many steps the job's count is ahead of the sync that gave the engine the weights for these tokens."""
    is_lagging: bool = False
    """Whether it may compare with later weights than those that drew the tokens, so that it grows while the job fills its queue."""


def _of_k3(value: float) -> float:
    """k3 is about E[Δ²] / 2 where Δ is small."""
    return sqrt(2 * abs(value))


DRAWN = "ckptcheck/drawn"
"""The gap of the tokens that a probe of the watch has the engine draw."""
LOGGED: Mapping[str, LoggedGap] = {
    "sampling/sampling_logp_difference/mean": LoggedGap("TRL", abs),
    "rollout_corr/k3_kl": LoggedGap("verl", _of_k3, ahead=1),
    "training/rollout_probs_diff_mean": LoggedGap(
        "verl", abs, ahead=1
    ),  # of probabilities: never more than that of logprobs
    "token_mult_prob_error": LoggedGap("NeMo-RL", lambda value: value - 1, ahead=1),
    "Generation KL Error": LoggedGap("NeMo-RL", _of_k3, ahead=1),  # as it prints gen_kl_error
    "train_rollout_logprob_abs_diff": LoggedGap("slime and miles", abs),
    "policy/rollout_train_logprobs_abs_diff_mean": LoggedGap("SkyRL", abs),
    "mismatch_kl/all/mean": LoggedGap("prime-rl", _of_k3, is_lagging=True),
    "mismatch_kl/mean": LoggedGap("prime-rl", _of_k3, is_lagging=True),
    "behave_approx_kl/avg": LoggedGap("AReaL", abs, is_lagging=True),
    "behave_approx_kl": LoggedGap("AReaL", abs, is_lagging=True),
    "vllm_kl": LoggedGap("OpenRLHF", abs),
    "mean_abs_log_ratio_new_old": LoggedGap("PipelineRL", abs, is_lagging=True),
    DRAWN: LoggedGap("ckptcheck", abs),
}
"""Name of the metric, which may stand behind a prefix such as ``train/`` → what it is; the first that is logged counts.

Read in TRL 1.16.0 (trainer/grpo_trainer.py), verl 1dda039b9 (trainer/ppo/rollout_corr_helper.py, utils/debug/metrics.py), NeMo-RL
7ea279abf (algorithms/loss/loss_functions.py), slime 624b824a8 (backends/megatron_utils/loss.py), SkyRL a9564572e
(train/trainer.py), prime-rl 559b44772 (trainer/rl/loss.py), AReaL 4aef98d8d (trainer/ppo/actor.py), OpenRLHF 3c3be6234
(models/loss.py), PipelineRL 58d3934 (finetune/rl/__init__.py). All are means over tokens, so that their length does not move them.
"""


def find_logged(name: str) -> str:
    """Return the name in `LOGGED` of a metric that a job logs, "" for any other metric.

    >>> find_logged("train/token_mult_prob_error")
    'token_mult_prob_error'
    """
    return next((known for known in LOGGED if name == known or name.endswith(f"/{known}")), "")


def find_gap(metrics: Mapping[Any, Any], step: int | None, dtype: str = "") -> GapRecord | None:
    """Return the gap among the metrics of a step; None where there is none.

    dtype: in which both sides compute, "" if that is not known.
    """
    found = {
        known: (name, value)
        for name, value in metrics.items()
        if isinstance(name, str) and (known := find_logged(name)) and not isinstance(value, bool)
    }
    for known in LOGGED:
        if known in found:
            name, value = found[known]
            try:
                number = float(value)
            except (TypeError, ValueError, RuntimeError):
                continue
            return GapRecord(name, number if isfinite(number) else None, step, dtype)
    return None


EXACT = 1e-4
"""Nats a token: what float32 has at most, and no narrower dtype as little (`rollouts.gap_summary.FLOORS`)."""


def is_exact(gap: GapRecord) -> bool:
    """Return whether a gap is so small that both sides compute in float32."""
    return gap.value is not None and LOGGED[find_logged(gap.name)].nats(gap.value) <= EXACT
