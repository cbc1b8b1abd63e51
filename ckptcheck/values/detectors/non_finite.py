"""Reports tensors that hold NaN or Inf, with the place of the first such value."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Literal

from ckptcheck.linter.rule import Problem
from ckptcheck.text.formatting import count, format_ranges, format_shape, join_truncated
from ckptcheck.values.stats import TensorStats

if TYPE_CHECKING:
    from ckptcheck.checkpoint.checkpoint import Checkpoint


def format_index(stats: TensorStats, flat: int) -> str:
    """Write a flat index as one index per dimension: ``[1, 5]``."""
    indices: list[int] = []
    for dimension in reversed(stats.shape):
        flat, index = divmod(flat, dimension)
        indices.append(index)
    return format_shape(reversed(indices))


def _format_layers(ckpt: Checkpoint, names: Iterable[str]) -> str:
    """Write the layers of the language model that hold these tensors: `` (layers 2,5-7)``; empty unless there are several."""
    if ckpt.components.stack is None:
        return ""
    inside = ckpt.components.stack.prefix + "."
    firsts = {name.removeprefix(inside).partition(".")[0] for name in names if name.startswith(inside)}
    numbers = [int(first) for first in firsts if first.isdigit()]
    return f" (layers {format_ranges(numbers)})" if len(numbers) > 1 else ""


def report_non_finite(
    ckpt: Checkpoint, bad: Sequence[TensorStats], kind: Literal["nan", "inf"], hint: str
) -> Iterator[Problem]:
    """Yield one problem per shard for the tensors with such values: the first with its place, the others by name."""
    for shard in dict.fromkeys(stats.shard for stats in bad):
        first, *rest = [stats for stats in bad if stats.shard == shard]
        number, place, word = (
            (first.nan, first.first_nan, "NaN") if kind == "nan" else (first.inf, first.first_inf, "infinite")
        )
        others = (
            f", and {count(len(rest), 'more tensor')}: {join_truncated([stats.name for stats in rest])}" if rest else ""
        )
        layers = _format_layers(ckpt, [first.name, *(stats.name for stats in rest)])
        yield Problem(
            f"{count(number, 'value')} {'is' if number == 1 else 'are'} {word}, "
            f"the first at {format_index(first, place)}{others}{layers}",
            file=shard,
            key=first.name,
            hint=hint,
            names=tuple(stats.name for stats in (first, *rest)),
        )
