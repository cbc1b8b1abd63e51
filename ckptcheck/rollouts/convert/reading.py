"""Reads sequence by sequence, so that one that cannot be read does not cost the others."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from ckptcheck.rollouts.build import Misfit, Rollout

T = TypeVar("T")
ODD = (AttributeError, IndexError, TypeError, ValueError, OverflowError, RecursionError)
"""What reading a field raises that is of another kind than its writer makes it."""


def each(read: Callable[[T], Rollout], items: Iterable[T]) -> list[Rollout | Misfit]:
    """Read every item. One that its writer cannot have made becomes a Misfit."""
    found: list[Rollout | Misfit] = []
    for item in items:
        try:
            found.append(item if isinstance(item, Misfit) else read(item))
        except Misfit as misfit:
            found.append(misfit)
        except KeyError as error:
            found.append(Misfit(f"it has no {error.args[0]}"))
        except ODD:
            found.append(Misfit("its fields are not of the kinds that its writer makes"))
    return found


def whole(value: Any) -> int | None:
    """Return a whole number that a file can hold; None for everything else."""
    return value if type(value) is int and -(2**63) <= value < 2**63 else None


def number(value: Any) -> float | None:
    """Return a number; None for everything else, and for what no float can hold."""
    try:
        return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None
    except OverflowError:
        return None
