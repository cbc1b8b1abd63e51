"""Replaces attributes of foreign objects and puts them back. Runs in the Pythons of engines and trainers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_UNDO: list[Callable[[], None]] = []


def replace(owner: Any, name: str, value: Any) -> Any:
    """Set an attribute of an object (its own, not its class's) until `undo_all`; return what it was."""
    before, is_own = getattr(owner, name), name in vars(owner)

    def put_back() -> None:
        setattr(owner, name, before) if is_own else delattr(owner, name)

    setattr(owner, name, value)
    _UNDO.append(put_back)
    return before


def at_end(action: Callable[[], None]) -> None:
    """Run an action when the faults are taken out."""
    _UNDO.append(action)


def undo_all() -> None:
    """Take all faults out, the last one first."""
    while _UNDO:
        _UNDO.pop()()
