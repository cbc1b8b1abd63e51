"""The digest of `ckptcheck_far.digest` on this side, with numpy: the same bytes give the same digits."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from ckptcheck.host.far.ckptcheck_far.digest import MASK, WIDTH, multipliers, spell

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

ROWS = 64
"""Rows that are hashed at once: 2 MiB."""


def digest(array: NDArray[Any]) -> str:
    """Return the digest of an array's bytes in row-major order, in 32 hexadecimal digits."""
    import numpy as np

    raw = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    if not raw.size:
        return spell((0, 0), 0)
    left: list[list[NDArray[np.uint64]]] = [[], []]
    for at in range(0, raw.size, 8 * WIDTH * ROWS):
        part = raw[at : at + 8 * WIDTH * ROWS]
        words = np.zeros(-(-part.size // (8 * WIDTH)) * WIDTH, np.uint64)
        words.view(np.uint8)[: part.size] = part
        for half in (0, 1):
            left[half].append(_rows(words, half))
    first, second = (_last(np.concatenate(left[half]), half) for half in (0, 1))
    return spell((first, second), raw.size)


def _rows(words: NDArray[np.uint64], half: int) -> NDArray[np.uint64]:
    table = words.reshape(-1, WIDTH)
    result: NDArray[np.uint64] = (((table >> 32) ^ table) * _odd(half)).sum(axis=1)
    return result


def _last(words: NDArray[np.uint64], half: int) -> int:
    import numpy as np

    while words.size > 1:
        words = _rows(np.concatenate([words, np.zeros(-words.size % WIDTH, np.uint64)]), half)
    return int(words[0]) & MASK


@functools.cache
def _odd(half: int) -> NDArray[np.uint64]:
    import numpy as np

    return np.array(multipliers(half), np.uint64)
