"""Watches the train engine of AReaL."""

from __future__ import annotations

from functools import wraps
from typing import Any, TypeVar

from ckptcheck.watch.interface import Interface
from ckptcheck.watch.passing import count_steps, replaced
from ckptcheck.watch.syncing import Syncing
from ckptcheck.watch.watch import Watch

T = TypeVar("T")
INTERFACE = Interface("AReaL", "2026-05-21", "4aef98d8d", {"update_weights": ("meta",)})
BUCKETS = ("_update_bucket_weights_from_distributed_async", "_update_bucket_weights_from_distributed")
"""Methods that send a bucket, given the update's description and pairs of names with tensors. FSDP's second one calls its first."""


def areal(engine: T, watch: Watch) -> T:
    """Watch the train engine of AReaL (FSDP, Megatron); call it on every rank, with a watch that is enabled on rank 0.

    The step is the version of the update, if it has one; if not, the watch counts syncs. The watch sees what rank 0 sends to
    the engines. With pipeline parallelism every stage sends its own part, and through files nothing is sent: the watch says so.
    """
    owner: Any = engine
    is_known = INTERFACE.check(owner)
    if not INTERFACE.has_methods(owner):
        return engine
    update, next_step = owner.update_weights, count_steps()
    name = next((name for name in BUCKETS if callable(getattr(owner, name, None))), "")

    @wraps(update)
    def watched(meta: Any, *arguments: Any, **keywords: Any) -> Any:
        number, version = next_step(), getattr(meta, "version", None)
        with watch(step=number if version is None else int(version)) as sync:
            if why := _explain_unseen(owner, meta, name) if is_known else "AReaL has another interface here":
                sync.unseen(why)
                return update(meta, *arguments, **keywords)
            with replaced(owner, **{name: _watch_bucket(getattr(owner, name), sync)}):
                return update(meta, *arguments, **keywords)

    owner.update_weights = watched
    return engine


def _explain_unseen(owner: Any, meta: Any, name: str) -> str:
    """Return why the watch cannot see every tensor of this update; "" if it can."""
    if getattr(meta, "type", "xccl") == "disk":
        return "AReaL writes the weights to files (type disk)"
    if not name:
        return f"AReaL's engine has neither {BUCKETS[0]} nor {BUCKETS[1]}"
    stages = getattr(getattr(owner, "parallel_strategy", None), "pipeline_parallel_size", 1)
    return "every pipeline stage of AReaL sends its own part" if stages > 1 else ""


def _watch_bucket(send: Any, sync: Syncing) -> Any:
    @wraps(send)
    def watched(meta: Any, named_tensors: Any, *arguments: Any, **keywords: Any) -> Any:
        return send(meta, sync.sent(named_tensors), *arguments, **keywords)

    return watched
