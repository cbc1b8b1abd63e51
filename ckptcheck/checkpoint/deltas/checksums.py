"""Computes the checksums that deltas carry, and says what each cannot see."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any, Protocol


class Hasher(Protocol):
    """Computes a checksum piece by piece."""

    def update(self, data: Any, /) -> Any:
        """Add bytes."""
        ...

    def hexdigest(self) -> str:
        """Return the checksum in hexadecimal digits."""
        ...


class Adler32:
    """Adler-32 as `hashlib` would offer it."""

    def __init__(self) -> None:
        self._value = 1

    def update(self, data: Any, /) -> None:
        """Add bytes."""
        self._value = zlib.adler32(data, self._value)

    def hexdigest(self) -> str:
        """Return eight hexadecimal digits."""
        return f"{self._value:08x}"


def _create_xxh3() -> Hasher:
    import xxhash

    return xxhash.xxh3_128()


def _create_blake3() -> Hasher:
    import blake3

    hasher: Hasher = blake3.blake3()
    return hasher


ALGORITHMS: dict[str, Callable[[], Hasher]] = {
    "adler32": Adler32,
    "blake3": _create_blake3,
    "xxh3-128": _create_xxh3,
}
"""Name in an index → factory of a hasher. The factory raises ImportError if its package is not installed."""
WEAKNESSES = {
    "adler32": "adler32, two sums of 16 bits: in a small tensor many faults leave them equal, and one can be made for any change",
    "xor": "an exclusive or of what was sent: any two elements that change places leave it equal",
}
"""Algorithm → the changes that it cannot detect, for algorithms weaker than the digests of `ckptcheck identity`."""
