"""The parallel layout of a trainer: how its ranks share a model."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from math import lcm

from ckptcheck.text.formatting import format_ranges as spans

SIZE = re.compile(r"(TP|PP|EP)(\d+)")


@dataclass(frozen=True, slots=True)
class ParallelLayout:
    """Sizes of tensor, pipeline and expert parallelism of a trainer.

    >>> str(ParallelLayout(2, 2)), ParallelLayout(2, 2).world_size
    ('TP2·PP2', 4)
    >>> ParallelLayout(ep=2).world_size, ParallelLayout(2, ep=2).world_size
    (2, 2)
    """

    tp: int = 1
    pp: int = 1
    ep: int = 1

    @property
    def world_size(self) -> int:
        """The smallest number of ranks that these sizes allow."""
        return self.pp * lcm(self.tp, self.ep)

    @property
    def expert_tp(self) -> int:
        """Number of parts that each expert is split into; 1 when experts are spread over ranks.

        Megatron reduces the gradients of experts over their own groups only where experts are spread. Experts that are
        neither spread nor split would drift apart on tensor-parallel ranks.
        """
        return self.tp if self.ep == 1 else 1

    @classmethod
    def parse(cls, text: str) -> ParallelLayout:
        """Read the text that `str` writes; a size that the text does not name is 1.

        >>> ParallelLayout.parse("TP2·PP2"), ParallelLayout.parse("")
        (ParallelLayout(tp=2, pp=2, ep=1), ParallelLayout(tp=1, pp=1, ep=1))
        """
        return cls(**{name.lower(): int(size) for name, size in SIZE.findall(text)})

    def describe_ranks(self, ranks: Iterable[int]) -> str:
        """Describe global ranks by their tensor, pipeline and expert parallel ranks; sizes of 1 are left out.

        Megatron counts tensor-parallel ranks first and pipeline stages last, and expert-parallel ranks within a stage
        (the order tp-cp-ep-dp-pp of parallel_state.py).

        >>> layout = ParallelLayout(2, 2)
        >>> layout.describe_ranks([2, 3]), ParallelLayout(ep=2).describe_ranks([1]), ParallelLayout().describe_ranks([0])
        ('TP ranks 0-1, PP rank 1', 'EP rank 1', '')
        """
        global_ranks, stage_size = list(ranks), self.world_size // self.pp
        parts = []
        for name, size, local_ranks in (
            ("TP", self.tp, {rank % self.tp for rank in global_ranks}),
            ("PP", self.pp, {rank // stage_size for rank in global_ranks}),
            ("EP", self.ep, {rank % stage_size % self.ep for rank in global_ranks}),
        ):
            if size > 1 and local_ranks:
                parts.append(f"{name} rank{'s' if len(local_ranks) > 1 else ''} {spans(local_ranks)}")
        return ", ".join(parts)

    def __str__(self) -> str:
        """Return the sizes above 1 as text (``TP2·PP2``); "" if all are 1."""
        sizes = (("TP", self.tp), ("PP", self.pp), ("EP", self.ep))
        return "·".join(f"{name}{size}" for name, size in sizes if size > 1)
