"""Measures how often a trainer routes tokens to other experts than the engine."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ckptcheck.parity.rollouts.rollouts import Rollouts


def compute_routing_disagreement(rollouts: Rollouts) -> tuple[NDArray[np.float64], int] | None:
    """Return the share of tokens whose *sets* of experts differ, for each layer [layers], and the number of compared tokens.

    A token is compared where both sides recorded its routing; the order of its experts is ignored. None where a side has no
    routing, or the shapes differ.
    """
    import numpy as np

    one, other = (rollouts.columns.get(f"{side}_routing") for side in ("engine", "trainer"))
    if one is None or other is None or one.shape[1:] != other.shape[1:]:
        return None
    differing, tokens = np.zeros(one.shape[1]), 0
    for block in rollouts.blocks():
        a, b = (np.asarray(x[block.token_slice]) for x in (one, other))
        known = (a >= 0).all((1, 2)) & (b >= 0).all((1, 2))
        a, b = np.sort(a[known], 2), np.sort(b[known], 2)
        differing += (a != b).any(2).sum(0)
        tokens += int(known.sum())
    return (differing / tokens, tokens) if tokens else None
