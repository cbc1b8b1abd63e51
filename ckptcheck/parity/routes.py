"""Which experts tokens went to, on either side, for rollouts that are judged later."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ckptcheck.rollouts import Rollouts


class Told(Protocol):
    """An engine or a trainer."""

    def routes(self, tokens: Sequence[int]) -> list[list[list[int]]]:
        """Return the experts of every token: layers, tokens, choices; [] where it cannot tell."""
        ...


def with_routes(rollouts: Rollouts, side: str, told: Told) -> Rollouts:
    """Add a side's routing (``engine`` or ``trainer``), int16 [tokens, layers, k], by prefill of every sequence.

    The rollouts as they are where the side cannot tell. -1 stands where a side tells of no expert.
    """
    import numpy as np

    found = []
    for place in range(rollouts.number):
        layers = told.routes(rollouts.tokens[rollouts.sequence(place)].tolist())
        if not layers:
            return rollouts
        most = max((len(row) for layer in layers for row in layer), default=0)
        padded = [[[*row, *[-1] * (most - len(row))] for row in layer] for layer in layers]
        found.append(np.asarray(padded, "<i2").transpose(1, 0, 2))
    if not found or len({part.shape[1:] for part in found}) > 1:
        return rollouts
    return rollouts.with_columns(None, **{f"{side}_routing": np.ascontiguousarray(np.concatenate(found))})
