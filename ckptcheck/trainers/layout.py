"""How a trainer's ranks share a model."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from math import lcm

from ckptcheck.phrase import ranges as spans

SIZE = re.compile(r"(TP|PP|EP)(\d+)")


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

    @classmethod
    def named(cls, text: str) -> Layout:
        """Read what `str` wrote; what it does not name is 1.

        >>> Layout.named("TP2·PP2"), Layout.named("")
        (Layout(tp=2, pp=2, ep=1), Layout(tp=1, pp=1, ep=1))
        """
        return cls(**{name.lower(): int(size) for name, size in SIZE.findall(text)})

    def places(self, ranks: Iterable[int]) -> str:
        """Say which parallel ranks these are, of the sizes above 1.

        Megatron counts tensor-parallel ranks first and stages last, and expert-parallel ones within a stage (the order
        tp-cp-ep-dp-pp of parallel_state.py).

        >>> Layout(2, 2).places([2, 3]), Layout(ep=2).places([1]), Layout().places([0])
        ('TP ranks 0-1, PP rank 1', 'EP rank 1', '')
        """
        held, stage = list(ranks), self.world // self.pp
        found = []
        for name, size, own in (
            ("TP", self.tp, {rank % self.tp for rank in held}),
            ("PP", self.pp, {rank // stage for rank in held}),
            ("EP", self.ep, {rank % stage % self.ep for rank in held}),
        ):
            if size > 1 and own:
                found.append(f"{name} rank{'s' if len(own) > 1 else ''} {spans(own)}")
        return ", ".join(found)

    def __str__(self) -> str:
        """Name the sizes above 1, "" where there is none."""
        sizes = (("TP", self.tp), ("PP", self.pp), ("EP", self.ep))
        return "·".join(f"{name}{size}" for name, size in sizes if size > 1)
