"""The token sequences that both sides score: fixed, so that two runs see the same."""

from __future__ import annotations

import random

LENGTH = 48
"""Tokens of the shortest."""


def sequences(vocabulary: int, *, number: int = 3, length: int = LENGTH) -> tuple[tuple[int, ...], ...]:
    """Return sequences of ordinary ids: random, and the same every time. vocabulary: rows of the embedding.

    The first few ids are left out, for the sake of padding and control tokens.
    """
    lowest = min(8, vocabulary // 4)
    source = random.Random(0)
    return tuple(
        tuple(source.randrange(lowest, vocabulary) for _ in range(length + number)) for number in range(number)
    )


def probe(vocabulary: int, block: int) -> tuple[int, ...]:
    """Return a sequence long enough for the prefix cache to keep it. block: tokens that the engine caches together."""
    source = random.Random(1)
    lowest = min(8, vocabulary // 4)
    return tuple(source.randrange(lowest, vocabulary) for _ in range(2 * block + 7))
