"""Tells a side a recorded sequence again, with tokens left out or added, and puts what it answers back where it belongs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ckptcheck.attribution.world import Unable
from ckptcheck.metrics.processed import processed
from ckptcheck.parity.full import Told
from ckptcheck.rollouts.rollouts import Rollouts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

FULL = 1 << 28
"""Bytes of whole distributions that one experiment asks for; sequences beyond that are left out of it."""
VOCABULARY = 1 << 18
"""Ids of a vocabulary of which nothing is known."""


@dataclass(frozen=True)
class Retelling:
    """drop, prepend: as in `TrainerChange`."""

    rollouts: Rollouts
    drop: int = 0
    prepend: tuple[int, ...] = ()

    def told(self, number: int) -> list[int]:
        """Return what a side is told instead of a sequence."""
        tokens: list[int] = self.rollouts.tokens[self.rollouts.sequence(number)].tolist()
        return [*self.prepend, *tokens[self.drop :]]

    def blank(self) -> NDArray[Any]:
        """Return logprobs, float64 [T], of which none is known yet."""
        import numpy as np

        return np.full(len(self.rollouts.tokens), np.nan)

    def place(self, made: NDArray[Any], number: int, values: Sequence[float] | NDArray[Any]) -> None:
        """Put the logprobs of every told token but the first where their tokens lie."""
        where = self.rollouts.sequence(number)
        first = 1 + self.drop - len(self.prepend)  # the token of the sequence that the first value is of
        skipped = max(0, -first)
        kept = values[skipped : skipped + where.stop - where.start - max(0, first)]
        begin = where.start + max(0, first)
        made[begin : begin + len(kept)] = kept

    def cut(self, side: Told, folder: Path, heat: float, top_p: float, top_k: int) -> NDArray[Any]:
        """Ask a side for whole distributions, and return logprobs of what is sampled from (see metrics/processed.py).

        Only of as many sequences, from the first on, as `FULL` has room for. Raises Unable where that is none.
        """
        import numpy as np
        from safetensors.numpy import load_file

        rows = FULL // (4 * (self.rollouts.metadata.vocabulary or VOCABULARY))
        numbers, taken = [], 0
        for number in range(self.rollouts.number):
            size = len(self.told(number))
            if size > 1 and taken + size <= rows:
                numbers.append(number)
                taken += size
        if not numbers:
            raise Unable("whole distributions of sequences so long do not fit")
        given = [self.told(number) for number in numbers]
        tables = load_file(side.full(given, folder))
        made = self.blank()
        for place, (number, tokens) in enumerate(zip(numbers, given, strict=True)):
            table = processed(np.asarray(tables[str(place)], np.float64), heat, top_p, top_k)
            self.place(made, number, table[np.arange(len(table)), tokens[1:]])
        return made
