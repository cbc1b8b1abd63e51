"""Adds the expert routing of a side to rollouts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ckptcheck.rollouts import Rollouts


class RoutingSource(Protocol):
    """An engine or a trainer that reports expert routing."""

    def expert_routing(self, tokens: Sequence[int]) -> list[list[list[int]]]:
        """Return the expert ids of every token, [layers][tokens][choices]; [] where the side does not report them."""
        ...


def add_expert_routing(rollouts: Rollouts, side: str, source: RoutingSource) -> Rollouts:
    """Add a side's routing (``engine`` or ``trainer``), int16 [tokens, layers, k], by prefill of every sequence.

    Returns the rollouts unchanged where the side does not report routing. -1 stands for a token without a reported expert.
    """
    import numpy as np

    parts = []
    for number in range(rollouts.sequence_count):
        layers = source.expert_routing(rollouts.tokens[rollouts.sequence(number)].tolist())
        if not layers:
            return rollouts
        choices = max((len(row) for layer in layers for row in layer), default=0)
        padded = [[[*row, *[-1] * (choices - len(row))] for row in layer] for layer in layers]
        parts.append(np.asarray(padded, "<i2").transpose(1, 0, 2))
    if not parts or len({part.shape[1:] for part in parts}) > 1:
        return rollouts
    return rollouts.with_columns(None, **{f"{side}_routing": np.ascontiguousarray(np.concatenate(parts))})
