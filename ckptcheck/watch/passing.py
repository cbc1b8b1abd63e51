"""Passes what a framework sends through a watch: a call's weights, a group that broadcasts, an awaited sync; and counts syncs."""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ckptcheck.watch.syncing import Syncing


def count_steps() -> Callable[[], int]:
    """Return a function that counts syncs as steps. The first two count as one step: a job that resumes syncs twice at first."""
    numbers = itertools.count(-1)
    return lambda: max(0, next(numbers))


@contextmanager
def replaced(owner: Any, **attributes: Any) -> Iterator[None]:
    """Give an object or a module other attributes for the time of a call."""
    before = {name: getattr(owner, name) for name in attributes}
    try:
        for name, value in attributes.items():
            setattr(owner, name, value)
        yield
    finally:
        for name, value in before.items():
            setattr(owner, name, value)


def watch_weights(
    sync: Syncing, arguments: tuple[Any, ...], keywords: dict[str, Any], names: tuple[str, ...]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments of a call with the weights passed through `sync.sent`.

    names: the keywords that may hold the weights; without them the weights are the first positional argument.
    """
    for name in names:
        if name in keywords:
            return arguments, keywords | {name: sync.sent(keywords[name])}
    return ((sync.sent(arguments[0]), *arguments[1:]) if arguments else arguments), keywords


async def await_result(sync: Syncing, awaitable: Awaitable[Any]) -> Any:
    """Await the result of a call, then end the watch of its sync."""
    try:
        result = await awaitable
    except BaseException as error:
        sync.after(error)
        raise
    sync.after()
    return result


class WatchedGroup:
    """A group of processes whose `broadcast` shows the watch each tensor, under the names of the sync in their order.

    Everything else is the group's own.
    """

    def __init__(self, group: Any, sync: Syncing, names: Iterator[str]) -> None:
        self._group, self._sync, self._names = group, sync, names

    def broadcast(self, tensor: Any, *arguments: Any, **keywords: Any) -> Any:
        """Show the watch the tensor, then broadcast it."""
        name = next(self._names, None)
        if name is None:
            self._sync.unseen("more tensors are broadcast than are named")
        else:
            self._sync.sent([(name, tensor)])
        return self._group.broadcast(tensor, *arguments, **keywords)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._group, name)
