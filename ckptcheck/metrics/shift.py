"""Whether logprobs agree better when one side is moved by a token: the commonest slip of a harness."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ckptcheck.rollouts.rollouts import Rollouts


def shifts(rollouts: Rollouts) -> dict[int, tuple[int, float]]:
    """Return k → (pairs, mean |q_i - p_(i+k)|) for k = -1, 0, 1; only pairs within one sequence, both under the mask.

    The same tokens i are used for every k, so that the means can be compared.
    """
    import numpy as np

    total = {-1: 0.0, 0: 0.0, 1: 0.0}
    pairs = 0
    for block in rollouts.blocks():
        inner = block.mask[1:-1] & block.mask[2:] & block.mask[:-2]
        owners = block.owners
        at = np.flatnonzero(inner & (owners[2:] == owners[:-2])) + 1
        q, p = (block.column(f"{side}_logprobs").astype(np.float64) for side in ("engine", "trainer"))
        with np.errstate(invalid="ignore"):  # infinite on both sides
            apart = {k: np.abs(q[at] - p[at + k]) for k in total}
        finite = np.isfinite(apart[0]) & np.isfinite(apart[1]) & np.isfinite(apart[-1])
        pairs += int(finite.sum())
        for k, values in apart.items():
            total[k] += float(values[finite].sum())
    return {k: (pairs, value / pairs if pairs else 0.0) for k, value in total.items()}
