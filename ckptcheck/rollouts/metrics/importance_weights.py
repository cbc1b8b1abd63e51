"""The weights by which a loss corrects for the gap between engine and trainer, as each framework computes them.

l is the log ratio of a token, the trainer's logprob less the engine's. A weight is the exponential of one of three things:

- token: of l. TRL token_*, verl rollout_is token, NeMo-RL, slime --use-tis, SkyRL and ROLL token, OpenRLHF, open-instruct;
- sequence: of the *sum* of l over the response, which is the product of its ratios. TRL sequence_*, verl rollout_is sequence,
  NeMo-RL sequence_level_importance_ratios, SkyRL tis_ratio_type sequence, ROLL weight_type sequence, slime's mis.py with tis_level
  sequence;
- geometric: of the *mean* of l. AReaL level sequence, ms-swift sequence_*, ROLL weight_type geometric, open-instruct
  rho_mask_sequence_level, slime's mis.py with tis_level geometric; as a mask also seq-mask-tis of NeMo-RL and OpenRLHF, and SkyRL.

Read and run (fixtures/framework_weights.py): TRL 1.16.0 trainer/grpo_trainer.py, verl 1dda039 trainer/ppo/rollout_corr_helper.py,
NeMo-RL 7ea279a algorithms/loss/loss_functions.py, slime 624b824 examples/train_infer_mismatch_helper/mis.py, SkyRL a956457
backends/skyrl_train/utils/off_policy_correction_utils.py, ROLL 8eb27cc utils/train_infer_corrections.py, AReaL 4aef98d
utils/functional/functional.py, ms-swift 3602360 rlhf_trainers/grpo_trainer.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Any

from ckptcheck.rollouts.metrics.logprob_metrics import LogprobMetrics

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ckptcheck.jobs.job import Job
    from ckptcheck.rollouts.rollouts import Rollouts

SMALL = 0.1
"""A sequence whose weight is smaller has lost its gradient. NVIDIA-NeMo/RL#2269 reports a mean weight of 0.06."""
LARGEST_LOG = 700.0
"""Close to the logarithm of the largest float64: larger weights are not told apart."""


@dataclass(frozen=True)
class Correction:
    """What a job does with its ratios: levels are token, sequence, geometric or none, as the module says."""

    weight: str = "none"
    """What a weight of the loss is taken over; none: all weights are 1."""
    low: float = 0.0
    """Smaller weights are raised to it."""
    high: float = inf
    """Larger weights are cut to it."""
    mask: str = "none"
    """Whose ratio decides that the weight is 0."""
    mask_low: float = 0.0
    """It does where that ratio is smaller."""
    mask_high: float = inf
    """It does where that ratio is larger."""

    @classmethod
    def of(cls, job: Job | None) -> Correction | None:
        """Return the correction of a job; None where the job or its correction is not known."""
        if job is None or (weight := job.text("algorithm.weight")) is None:
            return None
        mask = job.text("algorithm.mask") or "none"
        bounds = {}
        for field, kind, level in (("", "weight", weight), ("mask_", "mask", mask)):
            for end in ("low", "high"):
                bound = job.number(f"algorithm.{kind}_{end}") if level != "none" else None
                if bound is not None:
                    bounds[f"{field}{end}"] = bound
        return cls(weight, mask=mask, **bounds)

    def weigh(self, logs: dict[str, NDArray[np.float64]]) -> NDArray[np.float64]:
        """Return weights. logs: level → the logarithm of the ratio, arrays of one shape."""
        import numpy as np

        shape = next(iter(logs.values())).shape
        weights = np.ones(shape)
        if self.weight != "none":
            weights = np.clip(exponentiate(logs[self.weight]), self.low, self.high)
        if self.mask != "none":
            ratio = exponentiate(logs[self.mask])
            weights = np.where((ratio < self.mask_low) | (ratio > self.mask_high), 0.0, weights)
        return weights


@dataclass(frozen=True)
class Weights:
    """The weights of a loss over one file."""

    number: int
    """How many there are: tokens, or sequences."""
    least: float
    mean: float
    greatest: float
    small: int | None = None
    """How many are below `SMALL`; None: not counted."""
    lost: int | None = None
    """How many are 0."""

    @classmethod
    def of(cls, values: NDArray[np.float64]) -> Weights:
        """Summarise weights, of which there is at least one."""
        small, lost = int((values < SMALL).sum()), int((values == 0).sum())
        return cls(len(values), float(values.min()), float(values.mean()), float(values.max()), small, lost)


def exponentiate(logs: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return e^logs, without an overflow."""
    import numpy as np

    return np.asarray(np.exp(np.minimum(logs, LARGEST_LOG)))


def compute_log_ratios(gap: LogprobMetrics) -> dict[str, NDArray[np.float64]]:
    """Return level → the logarithm of the ratio of every sequence with a compared token: the sum and the mean of its l."""
    import numpy as np

    means = gap.sequence_trainer - gap.sequence_engine
    compared = ~np.isnan(means)
    means = means[compared]
    return {"sequence": means * gap.sequence_tokens[compared], "geometric": means}


def compute_weights(correction: Correction, gap: LogprobMetrics, rollouts: Rollouts) -> Weights:
    """Return the weights that a correction gives the compared tokens; those of sequences, where none depends on single tokens."""
    logs = compute_log_ratios(gap)
    if "token" not in (correction.weight, correction.mask):
        return Weights.of(correction.weigh(logs))
    return Weights.of(_weigh_tokens(correction, gap, logs, rollouts))


def _weigh_tokens(
    correction: Correction, gap: LogprobMetrics, logs: dict[str, NDArray[np.float64]], rollouts: Rollouts
) -> NDArray[Any]:
    import numpy as np

    of_sequence = {level: np.zeros(len(gap.sequence_tokens)) for level in logs}
    for level, values in logs.items():
        of_sequence[level][gap.sequence_tokens > 0] = values
    parts = []
    for block in rollouts.blocks():
        indices = np.flatnonzero(block.mask)
        engine, trainer = (block.column(f"{side}_logprobs")[indices].astype(float) for side in ("engine", "trainer"))
        with np.errstate(invalid="ignore"):
            token = trainer - engine
        known = np.isfinite(token)
        owners = block.owners[indices[known]]
        every = {level: values[owners] for level, values in of_sequence.items()}
        parts.append(correction.weigh({"token": token[known], **every}))
    return np.concatenate(parts)
