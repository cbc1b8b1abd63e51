"""Compares the expert routing of trainer and engine: how often they differ, and whether one side is shifted against the other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ckptcheck.rollouts.rollouts import Rollouts

SAMPLE = 1 << 14
"""Rows that are compared to find a shift."""
FARTHEST = 3
"""Most layers that a shift is searched for."""


@dataclass(frozen=True)
class RoutingShift:
    """The shift at which the routing of both sides agrees best."""

    layers: int
    """The trainer's layer l is the engine's layer l + layers."""
    tokens: int
    """The trainer's row t is the engine's row t + tokens."""
    agreement: float
    """Share of equal sets of experts with the shift."""
    unshifted: float
    """The same without it."""


def compute_routing_disagreement(rollouts: Rollouts) -> tuple[NDArray[np.float64], int] | None:
    """Return the share of tokens whose *sets* of experts differ, for each layer [layers], and the number of compared tokens.

    A token is compared where both sides recorded its routing, in all layers in which a side recorded any; the order of its
    experts is ignored. None where a side has no routing, or the shapes differ.
    """
    import numpy as np

    one, other = (rollouts.columns.get(f"{side}_routing") for side in ("engine", "trainer"))
    if one is None or other is None or one.shape[1:] != other.shape[1:]:
        return None
    # a dense layer of -1 on one side leaves no token with all layers
    recorded = [np.zeros(one.shape[1], bool) for _ in range(2)]
    for block in rollouts.blocks():
        for layers, column in zip(recorded, (one, other), strict=True):
            layers |= (np.asarray(column[block.token_slice]) >= 0).any((0, 2))
    shared = recorded[0] & recorded[1]
    differing, tokens = np.zeros(one.shape[1]), 0
    for block in rollouts.blocks():
        a, b = (np.asarray(x[block.token_slice]) for x in (one, other))
        known = ((a >= 0).all(2) & (b >= 0).all(2) | ~shared).all(1) & shared.any()
        a, b = np.sort(a[known], 2), np.sort(b[known], 2)
        differing += (a != b).any(2).sum(0) * shared
        tokens += int(known.sum())
    return (differing / tokens, tokens) if tokens else None


def find_routing_shift(rollouts: Rollouts) -> RoutingShift | None:
    """Return the shift by layers or by one token at which the first rows agree best; None where a side has no routing.

    Layers in which a side sends all tokens to the same experts show nothing and are left out.
    """
    import numpy as np

    columns = [rollouts.columns[name] for name in ("engine_routing", "trainer_routing") if name in rollouts]
    if len(columns) < 2 or columns[0].shape[2] != columns[1].shape[2]:
        return None
    end = int(rollouts.starts[np.searchsorted(rollouts.starts, SAMPLE, "right") - 1]) or int(
        min(SAMPLE, len(columns[0]))
    )
    engine, trainer = (np.sort(np.asarray(column[:end]), 2) for column in columns)
    owners = np.searchsorted(rollouts.starts, np.arange(end), "right")

    def agree(layers: int, tokens: int) -> float:
        first, last = max(0, -layers), min(trainer.shape[1], engine.shape[1] - layers)
        if last <= first:
            return 0.0
        place = np.arange(max(0, -tokens), end - max(0, tokens))
        place = place[owners[place] == owners[place + tokens]]
        ours, theirs = engine[place + tokens, first + layers : last + layers], trainer[place, first:last]
        return _share_equal(ours, theirs)

    unshifted = agree(0, 0)
    shifts = [(layers, 0) for layers in range(-FARTHEST, FARTHEST + 1) if layers] + [(0, -1), (0, 1)]
    best = max(shifts, key=lambda shift: agree(*shift))
    return RoutingShift(*best, agree(*best), unshifted)


def _share_equal(ours: NDArray[Any], theirs: NDArray[Any]) -> float:
    """Return the share of equal sets among the tokens and layers that both sides recorded; 0 without any."""
    known = (ours >= 0).all(2) & (theirs >= 0).all(2)
    varied = (ours != ours[:1]).any((0, 2)) & (theirs != theirs[:1]).any((0, 2)) if len(ours) else known.any(0)
    known &= varied
    return float((ours == theirs).all(2)[known].mean()) if known.any() else 0.0
