"""The numbers of one rollout file that a series of files needs, without the file's columns."""

from __future__ import annotations

from dataclasses import dataclass, field

from ckptcheck.rollouts.learning_signal import LearningSignal
from ckptcheck.rollouts.metadata import Metadata
from ckptcheck.rollouts.metrics.logprob_metrics import LogprobMetrics
from ckptcheck.rollouts.metrics.reference_gap import ReferenceGap
from ckptcheck.rollouts.rollout_evidence import RolloutEvidence
from ckptcheck.rollouts.rollout_queries import compute_mean_lag, parse_version


@dataclass(frozen=True)
class SeriesMember:
    """The data of one file that a series needs."""

    target: str
    """The file."""
    step: int | None
    """Its step of the training run; None where it is not recorded."""
    version: int | None
    """The newest weight version of its tokens; None where versions are not numbers."""
    gap: LogprobMetrics | None
    """Its metrics; None where nothing could be compared."""
    lag: float | None = None
    """How many versions its tokens are older than the trainer's weights, a mean over tokens; None where that is not recorded."""
    reward: float | None = None
    """The mean reward of its sequences; None where rewards are not recorded."""
    reference: ReferenceGap | None = None
    """How far the policy is from the reference model; None where that is not recorded."""
    signal: LearningSignal | None = field(default=None, repr=False)
    """What the step can learn; None where neither rewards nor advantages are recorded."""
    response_length: float | None = None
    """The mean length of its responses, in tokens; None where nothing was compared and no reward is known."""
    entropy: float | None = None
    """Of the trainer's whole distributions; None where these are not recorded."""
    metadata: Metadata = field(default_factory=Metadata, repr=False)
    """How its tokens were drawn and scored."""
    defect: str = ""
    """What is wrong with the form of the file; "" for nothing."""

    @classmethod
    def of(cls, judged: RolloutEvidence) -> SeriesMember:
        """Return the data of a file's evidence that a series needs, without the columns."""
        metadata = judged.rollouts.metadata
        numbers = [number for version in metadata.versions if (number := parse_version(version)) is not None]
        version = max(numbers) if numbers and len(numbers) == len(metadata.versions) else None
        if judged.rollouts.defects:
            return cls(judged.target, metadata.step, version, None, defect=judged.rollouts.defects[0].text)
        return cls(
            judged.target,
            metadata.step,
            version,
            judged.metrics_or_none,
            compute_mean_lag(judged),
            _compute_mean_reward(judged),
            judged.reference_gap,
            judged.learning_signal,
            _compute_mean_length(judged),
            None if judged.exact_kl is None else judged.exact_kl.trainer_entropy,
            metadata,
        )

    @property
    def is_drawn_by_engine(self) -> bool:
        """Whether the engine drew the tokens, as in a training job."""
        return self.metadata.sampled_by == "engine"


def _compute_mean_length(judged: RolloutEvidence) -> float | None:
    import numpy as np

    rollouts = judged.rollouts
    if (judged.metrics_or_none is None and judged.learning_signal is None) or rollouts.holds_prompts_only:
        return None
    return float(np.mean(np.diff(rollouts.starts) - rollouts.prompt_lengths))


def _compute_mean_reward(judged: RolloutEvidence) -> float | None:
    """Return the mean of the rewards that are numbers; None where there is none."""
    import numpy as np

    rewards = judged.rollouts.columns.get("rewards")
    finite = [] if rewards is None else np.asarray(rewards, np.float64)[np.isfinite(rewards)]
    return float(np.mean(finite)) if len(finite) else None
