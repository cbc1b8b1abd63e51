"""Watches verl's rollout, or its checkpoint engine."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

from ckptcheck.watch.interface import Interface
from ckptcheck.watch.passing import await_result, count_steps, watch_weights
from ckptcheck.watch.syncing import Syncing
from ckptcheck.watch.watch import Watch

T = TypeVar("T")
INTERFACE = Interface("verl", "2026-08-22", "1dda039b9", {"update_weights": ("weights",)})
"""Of a rollout. A checkpoint engine has `send_weights` in its place."""


def verl(side: T, watch: Watch) -> T:
    """Watch verl's rollout (`update_weights`) or its checkpoint engine (`send_weights`): whichever this side has.

    ``global_steps`` is the step, and the version that verl gives its server; without it, the watch counts syncs. The weights may
    be a generator or an asynchronous generator, and the method may be a coroutine or not: both stay as they are. The watch
    digests the flushes of deltas (``delta_flush``) as payloads: the weights that they change are unknown. The
    checkpoint engine `delta_sharded` gets the training engine in place of weights: there the watch sees its
    publications: flushes as payloads, and the whole weights of its first sync and of its sweeps by their names.
    """
    component: Any = side
    name = "update_weights" if hasattr(component, "update_weights") else "send_weights"
    if not hasattr(component, name):
        INTERFACE.check(component)
        return side
    send: Callable[..., Any] = getattr(component, name)
    next_step = count_steps()
    sending: list[Syncing] = []
    has_flushes = name == "send_weights" and watch_flushes(component, sending)

    @wraps(send)
    def watched(*arguments: Any, **keywords: Any) -> Any:
        number, step = next_step(), keywords.get("global_steps")
        sync = watch(step=number if step is None else step, version=None if step is None else str(step))
        sync.before()
        try:
            if has_flushes:
                sending[:] = [sync]
            else:
                arguments, keywords = watch_weights(sync, arguments, keywords, ("weights",))
            result = send(*arguments, **keywords)
        except BaseException as error:
            sync.after(error)
            raise
        if inspect.isawaitable(result):
            return await_result(sync, result)
        sync.after()
        return result

    @wraps(send)
    async def awaited(*arguments: Any, **keywords: Any) -> Any:
        return await watched(*arguments, **keywords)

    setattr(component, name, awaited if inspect.iscoroutinefunction(send) else watched)
    return side


def watch_flushes(component: Any, sending: list[Syncing]) -> bool:
    """Show the sync in `sending` the publications of verl's `delta_sharded`; return whether it is that engine."""
    publish_flush = getattr(component, "_publish_flush", None)
    publish_values = getattr(component, "_publish_values_flush", None)
    if not callable(publish_flush) or not callable(publish_values):
        return False

    @wraps(publish_flush)
    def show_flush(flush: Any, *arguments: Any, **keywords: Any) -> Any:
        for sync in sending:
            sync.sent([flush])
        return publish_flush(flush, *arguments, **keywords)

    @wraps(publish_values)
    def show_values(params: Any, values: Any, *arguments: Any, **keywords: Any) -> Any:
        for sync in sending:
            sync.sent([(param.name, values[param.val_start : param.val_end].reshape(param.shape)) for param in params])
        return publish_values(params, values, *arguments, **keywords)

    component._publish_flush, component._publish_values_flush = show_flush, show_values
    return True
