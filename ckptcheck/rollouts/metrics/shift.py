"""Measures whether logprobs agree better when one side is shifted by a token, which is a harness's most common mistake."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ckptcheck.rollouts.rollouts import Rollouts


def compute_shifted_gaps(rollouts: Rollouts) -> dict[int, tuple[int, float]]:
    """Return k → (pairs, mean |q_i - p_(i+k)|) for k = -1, 0, 1. q: the engine's logprobs, p: the trainer's.

    Both tokens of a pair are in the same sequence and under the mask. Every k uses the same tokens i, so that the means are
    comparable.
    """
    import numpy as np

    total = {-1: 0.0, 0: 0.0, 1: 0.0}
    pairs = 0
    for block in rollouts.blocks():
        owners = block.owners
        inner = block.mask[1:-1] & block.mask[2:] & block.mask[:-2] & (owners[2:] == owners[:-2])
        q, p = (block.column(f"{side}_logprobs").astype(np.float64) for side in ("engine", "trainer"))
        # infinity less infinity is NaN, which is left out below
        with np.errstate(invalid="ignore"):
            abs_diff = {k: np.abs(q[1:-1] - p[1 + k : len(p) - 1 + k])[inner] for k in total}
        finite = np.isfinite(abs_diff[0]) & np.isfinite(abs_diff[1]) & np.isfinite(abs_diff[-1])
        pairs += int(finite.sum())
        for k, values in abs_diff.items():
            total[k] += float(values[finite].sum())
    return {k: (pairs, value / pairs if pairs else 0.0) for k, value in total.items()}
