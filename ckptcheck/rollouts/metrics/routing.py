"""Compares the expert routing of trainer and engine: how often they differ, and whether one side is shifted against the other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ckptcheck.rollouts.metrics.routing_record import is_due

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ckptcheck.rollouts.rollouts import Block, Rollouts

SAMPLE = 1 << 14
"""Rows that are compared to find a shift."""
FARTHEST = 3
"""Most layers that a shift is searched for."""
AGREEING, TIMES = 0.5, 3.0
"""A shift counts if this share of the sets of experts is equal with it, and this many times as many as without it."""
ROUTERS = 0.01
"""Share of decisions from which two routers differ. In bfloat16 it is a tenth (NVIDIA/Megatron-LM#4256)."""


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

    @property
    def is_certain(self) -> bool:
        """Whether the sides agree so much better with the shift that it is one."""
        return self.agreement >= AGREEING and self.agreement >= TIMES * self.unshifted


@dataclass(frozen=True)
class UnlikeRows:
    """The rows of two records of routing whose sets of experts differ."""

    tokens: int
    """Number of compared tokens."""
    number: int
    """Number of tokens that differ in some layer."""
    compared: int
    """Number of sequences with a compared token."""
    sequences: int
    """Number of those with a token that differs."""
    layers: NDArray[np.int64]
    """int64 [layers]: number of tokens that differ in each layer."""
    first: tuple[int, int, int] | None
    """Sequence, position in it, and layer of the first row that differs; None: all are equal."""

    @property
    def is_everywhere(self) -> bool:
        """Whether rows differ as those of two routers do: in half of the tokens, or in every sequence and every layer used."""
        share = self.layers.sum() / (self.tokens * max(1, int((self.layers > 0).sum())))
        spread = self.sequences == self.compared and bool((self.layers > 0).mean() > 0.5)
        return 2 * self.number >= self.tokens or (spread and share >= ROUTERS)


def compute_routing_disagreement(rollouts: Rollouts) -> tuple[NDArray[np.float64], int] | None:
    """Return the share of tokens whose *sets* of experts differ, for each layer [layers], and the number of compared tokens.

    A token is compared where both sides recorded its routing, in all layers in which a side recorded any; the order of its
    experts is ignored. None where a side has no routing, or the shapes differ.
    """
    differing: Any = 0
    tokens = 0
    for _, _, unlike in _compare_rows(rollouts):
        differing, tokens = differing + unlike.sum(0), tokens + len(unlike)
    return (differing / tokens, tokens) if tokens else None


def find_unlike_rows(rollouts: Rollouts) -> UnlikeRows | None:
    """Return where the sets of experts differ, among the rows that an engine computes; None as for the shares.

    The last token of a sequence has no row: the engine computes nothing from it, and frameworks pad it.
    """
    import numpy as np

    tokens = number = compared = sequences = 0
    layers: Any = 0
    first = None
    for block, indices, unlike in _compare_rows(rollouts):
        due = is_due(block)[indices]
        indices, unlike = indices[due], unlike[due]
        owners, wrong = block.owners[indices], unlike.any(1)
        tokens, number = tokens + len(indices), number + int(wrong.sum())
        compared, sequences = compared + len(np.unique(owners)), sequences + len(np.unique(owners[wrong]))
        layers = layers + unlike.sum(0)
        if first is None and wrong.any():
            at = int(wrong.argmax())
            first = int(owners[at]), int(block.positions[indices[at]]), int(unlike[at].argmax())
    if not tokens:
        return None
    return UnlikeRows(tokens, number, compared, sequences, np.asarray(layers), first)


def _compare_rows(rollouts: Rollouts) -> Iterator[tuple[Block, NDArray[np.intp], NDArray[np.bool_]]]:
    """Yield blocks, the tokens in them that both sides recorded, and whether their sets of experts differ: [tokens, layers]."""
    import numpy as np

    one, other = (rollouts.columns.get(f"{side}_routing") for side in ("engine", "trainer"))
    if one is None or other is None or one.shape[1:] != other.shape[1:]:
        return
    # a dense layer of -1 on one side leaves no token with all layers
    recorded = [np.zeros(one.shape[1], bool) for _ in range(2)]
    for block in rollouts.blocks():
        for layers, column in zip(recorded, (one, other), strict=True):
            layers |= (np.asarray(column[block.token_slice]) >= 0).any((0, 2))
    shared = recorded[0] & recorded[1]
    for block in rollouts.blocks():
        a, b = (np.asarray(x[block.token_slice]) for x in (one, other))
        known = np.flatnonzero(((a >= 0).all(2) & (b >= 0).all(2) | ~shared).all(1) & shared.any())
        a, b = np.sort(a[known], 2), np.sort(b[known], 2)
        yield block, known, (a != b).any(2) & shared


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
