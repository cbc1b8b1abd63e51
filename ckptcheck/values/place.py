"""Says where in a tensor an element is, and which tensors hold values that are not finite."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Literal

from ckptcheck.phrase import count, few, ranges, shape
from ckptcheck.rule import Problem
from ckptcheck.values.stats import TensorStats

if TYPE_CHECKING:
    from ckptcheck.checkpoint.checkpoint import Checkpoint


def position(stats: TensorStats, flat: int) -> str:
    """Turn a flat index into one per dimension: ``[1, 5]``."""
    found: list[int] = []
    for dimension in reversed(stats.shape):
        flat, here = divmod(flat, dimension)
        found.append(here)
    return shape(reversed(found))


def _layers(ckpt: Checkpoint, names: Iterable[str]) -> str:
    """Say which layers of the language model these tensors are in: `` (layers 2,5-7)``; nothing unless they are several."""
    if ckpt.anatomy.stack is None:
        return ""
    inside = ckpt.anatomy.stack.prefix + "."
    firsts = {name.removeprefix(inside).partition(".")[0] for name in names if name.startswith(inside)}
    numbers = [int(first) for first in firsts if first.isdigit()]
    return f" (layers {ranges(numbers)})" if len(numbers) > 1 else ""


def not_finite(
    ckpt: Checkpoint, bad: Sequence[TensorStats], kind: Literal["nan", "inf"], word: str, hint: str
) -> Iterator[Problem]:
    """Yield a problem per shard for the tensors that hold such values: the first with its place, the others named."""
    for shard in dict.fromkeys(stats.shard for stats in bad):
        first, *rest = [stats for stats in bad if stats.shard == shard]
        number, place = (first.nan, first.first_nan) if kind == "nan" else (first.inf, first.first_inf)
        others = f", and {count(len(rest), 'more tensor')}: {few([stats.name for stats in rest])}" if rest else ""
        layers = _layers(ckpt, [first.name, *(stats.name for stats in rest)])
        yield Problem(
            f"{count(number, 'value')} {'is' if number == 1 else 'are'} {word}, "
            f"the first at {position(first, place)}{others}{layers}",
            file=shard,
            key=first.name,
            hint=hint,
        )
