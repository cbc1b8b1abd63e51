"""Measures the gap between two sets of logprobs of the same tokens, by the definitions that trainers log. Needs only numpy."""

from ckptcheck.rollouts.metrics.logprob_metrics import (
    ClipBounds,
    LogprobMetrics,
    TokenGap,
    average_directions,
    compute_metrics,
)
from ckptcheck.rollouts.metrics.noise_floor import NoiseFloor

__all__ = ["ClipBounds", "LogprobMetrics", "NoiseFloor", "TokenGap", "average_directions", "compute_metrics"]
