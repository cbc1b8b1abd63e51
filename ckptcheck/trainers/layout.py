"""How a trainer's ranks share a model."""

from __future__ import annotations

from dataclasses import dataclass
from math import lcm


@dataclass(frozen=True, slots=True)
class Layout:
    """Tensor, pipeline and expert parallel sizes.

    >>> str(Layout(2, 2)), Layout(2, 2).world, Layout(ep=2).world, Layout(2, ep=2).world
    ('TP2·PP2', 4, 2, 2)
    """

    tp: int = 1
    pp: int = 1
    ep: int = 1

    @property
    def world(self) -> int:
        """How many ranks there are: as few as the sizes allow."""
        return self.pp * lcm(self.tp, self.ep)

    @property
    def etp(self) -> int:
        """In how many parts an expert is cut. Where experts are spread, each is whole.

        Megatron reduces the gradients of experts over their own groups only where they are spread, so experts that are
        neither spread nor cut would drift apart on tensor-parallel ranks.
        """
        return self.tp if self.ep == 1 else 1

    def __str__(self) -> str:
        """Name the sizes above 1, "" where there is none."""
        sizes = (("TP", self.tp), ("PP", self.pp), ("EP", self.ep))
        return "·".join(f"{name}{size}" for name, size in sizes if size > 1)
