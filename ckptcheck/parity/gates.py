"""From where on a gap is a finding. Every number is a flag of ``ckptcheck parity judge``."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Gates:
    """Limits, and where they come from.

    mult_prob_error: NeMo-RL's for equal precision (docs/adding-new-models.md). kl: where broken syncs begin; healthy ones are seen
    at 1e-4 to 1e-3, and NeMo-RL's docs/guides/grpo.md calls 1e-3 acceptable. prob_diff: verl's sign of a precision issue (its FAQ).
    abs_mean: slime's gate in CI is 0.1; None: not asked for. sequence: from which NeMo-RL's recipes mask a sequence.
    floor: how many times its own floor a model may have. lag: versions that tokens may be older than the trainer's weights.
    """

    mult_prob_error: float = 1.05
    kl: float = 0.01
    prob_diff: float = 0.01
    abs_mean: float | None = None
    sequence: float = 2.0
    floor: float = 5.0
    lag: int = 1
