"""The known facts about the ranks and tokens of two dumps, beside the outputs of their modules."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class UnequalCopy:
    """An output that all ranks of a tensor-parallel group hold, but that differs between them."""

    side: str
    point: str
    rank: str
    """The rank that is farther from the other side."""
    peer: str
    """The rank that is closer to it."""
    relative: float
    """Norm of the difference between the two ranks, divided by the norm of the peer's output."""
    relation: str | None
    """How the rank's output is related to the peer's; None without a simple relation."""


@dataclass(frozen=True)
class RankLayout:
    """How ckptcheck matched the ranks and tokens of two dumps."""

    unequal_copies: tuple[UnequalCopy, ...] = ()
    """The first of each tensor-parallel group."""
    not_compared: tuple[str, ...] = ()
    """Ranks and calls of modules that are not compared, and why: clauses for a reader."""
    is_fused: bool = False
    """Whether q, k and v are one projection on both sides, and no config says how to split it."""
    moves: tuple[str, ...] = ()
    """Tokens that stand elsewhere on the other side, or are padding: clauses for a reader."""
    different: str | None = None
    """How the tokens of the two sides differ; None if they are the same."""
    positions: str | None = None
    """How the position ids of the same tokens differ; None if they are the same, or if a dump has none."""
