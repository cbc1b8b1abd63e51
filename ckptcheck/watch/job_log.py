"""Reads the gap between engine and trainer where a job logs it: in the driver of verl, NeMo-RL or SkyRL, which syncs no weights."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from functools import partial, wraps
from typing import Any, TypeVar

from ckptcheck.errors import CkptcheckError
from ckptcheck.watch.watch import Watch

T = TypeVar("T")
METHODS = ("log", "log_metrics", "log_train", "commit")
"""Of verl's, SkyRL's and miles' `Tracking`, prime-rl's `monitors` and slime's `logging_utils` (both modules); NeMo-RL's `Logger`;
OpenRLHF's `WandbLogger` and `TensorboardLogger`; AReaL's `StatsLogger`. Read at the commits that their adapters name."""
STEPS = ("global_step", "step")
"""Arguments, and ends of metrics, that hold the step, in the order in which they count."""


def watch_log(tracker: T, watch: Watch) -> T:
    """Have a watch read what a job logs, for the gap that it measures itself; return the tracker.

    tracker: what the job logs its metrics with: an object or a module. Where the watch sees no sync, each gap has a record of its
    own. Raises CkptcheckError for what has no such method.
    """
    owner: Any = tracker
    names = [name for name in METHODS if callable(getattr(owner, name, None))]
    if not names:
        raise CkptcheckError(
            f"{type(owner).__name__} has none of {', '.join(METHODS)}", "give what the job logs its metrics with"
        )
    for name in names:
        setattr(owner, name, _watch_method(getattr(owner, name), watch))
    return tracker


def _watch_method(method: Any, watch: Watch) -> Any:
    @wraps(method)
    def watched(*arguments: Any, **keywords: Any) -> Any:
        watch.attempt("read what is logged", partial(_read, method, arguments, keywords, watch), once=True)
        return method(*arguments, **keywords)

    return watched


def _read(method: Any, arguments: tuple[Any, ...], keywords: dict[str, Any], watch: Watch) -> None:
    bound = inspect.signature(method).bind(*arguments, **keywords).arguments
    for metrics in _find_metrics(bound):
        watch.logged(metrics, _find_step(bound, metrics))


def _find_metrics(bound: Mapping[str, Any]) -> Iterator[Mapping[Any, Any]]:
    for value in bound.values():
        for each in value if isinstance(value, list | tuple) else [value]:
            if isinstance(each, Mapping):
                yield each


def _find_step(bound: Mapping[str, Any], metrics: Mapping[Any, Any]) -> int | None:
    for name in STEPS:
        for value in (
            bound.get(name),
            *(value for key, value in metrics.items() if str(key).rpartition("/")[2] == name),
        ):
            if isinstance(value, int) and not isinstance(value, bool):
                return value
    return None
