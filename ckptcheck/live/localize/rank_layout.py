"""What is known of the ranks and tokens of two dumps, beside the outputs of their modules."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class UnequalCopy:
    """An output that all ranks of a tensor-parallel group hold, and that is not the same on all of them."""

    side: str
    point: str
    rank: str
    """The rank that is farther from the other side."""
    peer: str
    """The rank that is closer to it."""
    relative: float
    """Norm of the difference between the two ranks, divided by the norm of the peer's output."""
    relation: str | None
    """How the rank's output is related to the peer's; None where no simple relation holds."""


@dataclass(frozen=True)
class RankLayout:
    """How the ranks and tokens of two dumps were brought together."""

    unequal_copies: tuple[UnequalCopy, ...] = ()
    """The first of each tensor-parallel group."""
    not_compared: tuple[str, ...] = ()
    """Ranks and calls of modules that were not compared, and why: clauses for a reader."""
    moves: tuple[str, ...] = ()
    """Which tokens stand elsewhere on the other side, or are padding: clauses for a reader."""
    different: str | None = None
    """How the tokens of the two sides differ; None where they are the same ones."""
    positions: str | None = None
    """How the position ids of the same tokens differ; None where they are the same, or a dump has none."""
