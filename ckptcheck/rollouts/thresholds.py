"""The limits beyond which a gap is a finding. Every number is an option of ``ckptcheck parity judge``."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Thresholds:
    """Limits, and where they come from."""

    mult_prob_error: float = 1.05
    """NeMo-RL's limit for equal precision (docs/adding-new-models.md)."""
    kl: float = 0.01
    """Broken syncs begin here; healthy ones reach 1e-4 to 1e-3, and NeMo-RL's docs/guides/grpo.md calls 1e-3 acceptable."""
    prob_diff: float = 0.01
    """verl's sign of a precision issue (its FAQ)."""
    abs_mean: float | None = None
    """slime's gate in CI is 0.1; None: not checked."""
    sequence: float = 2.0
    """mult_prob_error from which NeMo-RL's recipes mask a sequence."""
    floor: float = 5.0
    """How many times its own floor the gap of a model may be."""
    lag: int = 1
    """Versions by which tokens may be older than the trainer's weights."""
    clip_low: float | None = None
    """The objective clips the policy ratio below 1 - clip_low; None: as the rollouts record. No finding depends on it."""
    clip_high: float | None = None
    """The objective clips the policy ratio above 1 + clip_high; None: as the rollouts record."""
    exact: bool = False
    """Whether any difference between the two sides is an error."""
