"""Measures how far the trained policy is from the reference model whose KL its objective penalizes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ckptcheck.rollouts.rollouts import Rollouts


@dataclass(frozen=True)
class ReferenceGap:
    """The gap over the compared tokens whose two logprobs are finite, in nats."""

    side: str
    """Whose logprobs stand for the policy: `trainer`; `engine` where the trainer has none."""
    tokens: int
    kl: float
    """KL(policy ‖ reference) a token by k3: mean e^r - 1 - r of r = reference - policy (Schulman, "Approximating KL Divergence",
    2020; verl kl_penalty low_var_kl, TRL per_token_kl)."""
    abs_mean: float
    """Mean |r|."""
    abs_max: float
    """Largest |r|; 0 where both are equal bit for bit."""
    place: str
    """Sequence and position of the largest |r|."""
    policy_mean: float
    """Mean logprob of the policy."""
    reference_mean: float
    """Mean logprob of the reference."""


def measure_reference(rollouts: Rollouts) -> ReferenceGap | None:
    """Compare the policy with the reference; None where a side has no finite logprob."""
    import numpy as np

    side = next((side for side in ("trainer", "engine") if f"{side}_logprobs" in rollouts), None)
    if side is None or "reference_logprobs" not in rollouts:
        return None
    tokens, kl, distance, policy, reference = 0, 0.0, 0.0, 0.0, 0.0
    largest, place = -1.0, ""
    for block in rollouts.blocks():
        indices = np.flatnonzero(block.mask)
        p, q = (block.column(f"{name}_logprobs")[indices].astype(np.float64) for name in (side, "reference"))
        finite = np.isfinite(p) & np.isfinite(q)
        indices, p, q = indices[finite], p[finite], q[finite]
        if not len(indices):
            continue
        r = q - p
        with np.errstate(over="ignore"):
            kl += float((np.expm1(r) - r).sum())
        tokens, policy, reference = tokens + len(r), policy + float(p.sum()), reference + float(q.sum())
        absolute = np.abs(r)
        distance += float(absolute.sum())
        worst = int(absolute.argmax())
        if absolute[worst] > largest:
            largest = float(absolute[worst])
            place = f"sequence {block.owners[indices[worst]]}, token {block.positions[indices[worst]]}"
    if not tokens:
        return None
    return ReferenceGap(
        side, tokens, kl / tokens, distance / tokens, largest, place, policy / tokens, reference / tokens
    )
