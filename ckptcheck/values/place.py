"""Says where in a tensor an element is, and which tensors hold values that are not finite."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

from ckptcheck.phrase import count, few, shape
from ckptcheck.rule import Problem
from ckptcheck.values.stats import TensorStats


def position(stats: TensorStats, flat: int) -> str:
    """Turn a flat index into one per dimension: ``[1, 5]``."""
    found: list[int] = []
    for dimension in reversed(stats.shape):
        flat, here = divmod(flat, dimension)
        found.append(here)
    return shape(reversed(found))


def not_finite(bad: Sequence[TensorStats], kind: Literal["nan", "inf"], word: str, hint: str) -> Iterator[Problem]:
    """Yield a problem per shard for the tensors that hold such values: the first with its place, the others named."""
    for shard in dict.fromkeys(stats.shard for stats in bad):
        first, *rest = [stats for stats in bad if stats.shard == shard]
        number, place = (first.nan, first.first_nan) if kind == "nan" else (first.inf, first.first_inf)
        others = f", and {count(len(rest), 'more tensor')}: {few([stats.name for stats in rest])}" if rest else ""
        yield Problem(
            f"{count(number, 'value')} {'is' if number == 1 else 'are'} {word}, the first at {position(first, place)}{others}",
            file=shard,
            key=first.name,
            hint=hint,
        )
