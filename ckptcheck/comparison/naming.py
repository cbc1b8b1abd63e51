"""Names of many tensors, written together: layers and experts as ranges."""

from __future__ import annotations

from collections.abc import Iterable

from ckptcheck.bridge.table import NUMBER
from ckptcheck.phrase import ranges

MOST = 3


def template(name: str) -> tuple[str, ...]:
    """Return what is around the numbers of a name: the same for all layers and experts."""
    return tuple(NUMBER.split(name)[::2])


def together(names: Iterable[str], most: int = MOST) -> str:
    """Name tensors that differ in a number as one; the first few such groups, the others counted.

    >>> together([f"model.layers.{n}.mlp.up_proj.weight" for n in range(4)] + ["model.norm.weight"])
    'model.layers.{0-3}.mlp.up_proj.weight, model.norm.weight'
    """
    groups: dict[tuple[str, ...], list[tuple[int, ...]]] = {}
    for name in names:
        groups.setdefault(template(name), []).append(tuple(map(int, NUMBER.findall(name))))
    listed = [_group(rest, numbers) or '""' for rest, numbers in list(groups.items())[:most]]
    left = sum(len(numbers) for numbers in list(groups.values())[most:])
    return ", ".join(listed) + (f" and {left:,} more" if left else "")


def _group(rest: tuple[str, ...], numbers: list[tuple[int, ...]]) -> str:
    written = rest[0]
    for place, following in enumerate(rest[1:]):
        values = {number[place] for number in numbers}
        written += (str(next(iter(values))) if len(values) == 1 else "{" + ranges(values, 4) + "}") + following
    return written
