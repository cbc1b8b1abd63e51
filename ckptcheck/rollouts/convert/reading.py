"""Reads sequences one by one, so that an unreadable one does not prevent reading the others."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from ckptcheck.rollouts.build import Rollout, UnusableSequence

T = TypeVar("T")
WRONG_FIELD_ERRORS = (AttributeError, IndexError, TypeError, ValueError, OverflowError, RecursionError)
"""Errors that arise from a field whose type is not the one that its writer produces."""


def read_each(read: Callable[[T], Rollout], items: Iterable[T]) -> list[Rollout | UnusableSequence]:
    """Read every item. An item that its writer cannot have produced becomes an UnusableSequence."""
    sequences: list[Rollout | UnusableSequence] = []
    for item in items:
        try:
            sequences.append(item if isinstance(item, UnusableSequence) else read(item))
        except UnusableSequence as error:
            sequences.append(error)
        except KeyError as error:
            sequences.append(UnusableSequence(f"it has no {error.args[0]}"))
        except WRONG_FIELD_ERRORS:
            sequences.append(UnusableSequence("a field has another type than its writer gives it"))
    return sequences


def as_int(value: Any) -> int | None:
    """Return the value if it is a whole number of 64 bits, else None."""
    return value if type(value) is int and -(2**63) <= value < 2**63 else None


def as_float(value: Any) -> float | None:
    """Return the value as a float; None for anything but a number, and for one beyond the range of floats."""
    try:
        return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None
    except OverflowError:
        return None
