"""Numbers that an engine keeps on the host: read after a sync, and compared with those of a cold load."""

from __future__ import annotations

from ckptcheck.live.runtime.engines.base import HostScalars, Inspectable


def same_number(one: float, other: float | None) -> bool:
    """Return whether two numbers of an engine are equal; NaN is equal to NaN, and None is no number.

    >>> same_number(1, 1.0), same_number(float("nan"), float("nan")), same_number(1.0, None)
    (True, True, False)
    """
    return other is not None and (one == other or (one != one and other != other))


class ScalarReader:
    """Reads the numbers on the host of the engines of one trial, without those that a forward pass changes."""

    def __init__(self) -> None:
        self._moving: frozenset[tuple[int, str]] = frozenset()

    def read(self, engine: Inspectable) -> HostScalars:
        """Read the numbers of an engine that has computed something: some are made by the first forward pass."""
        return {key: value for key, value in engine.read_scalars().items() if key not in self._moving}

    def leave_out_moving(self, before: HostScalars, after: HostScalars) -> None:
        """Leave out from now on what differs between two readings with only a forward pass between them."""
        self._moving |= {key for key in before.keys() | after.keys() if not _is_unmoved(before, after, key)}


def _is_unmoved(before: HostScalars, after: HostScalars, key: tuple[int, str]) -> bool:
    return key in before and same_number(before[key], after.get(key))
