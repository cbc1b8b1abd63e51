"""Watches the parameter server of checkpoint-engine."""

from __future__ import annotations

from collections.abc import Mapping
from functools import wraps
from typing import Any, TypeVar

from ckptcheck.watch.interface import Interface
from ckptcheck.watch.passing import count_steps
from ckptcheck.watch.tensor_digests import digests
from ckptcheck.watch.watch import Watch

T = TypeVar("T")
INTERFACE = Interface(
    "checkpoint-engine",
    "",
    "0.4.2",
    {
        "register_checkpoint": ("checkpoint_name", "files", "named_tensors"),
        "update": ("checkpoint_name", "req_func"),
    },
)


def checkpoint_engine(server: T, watch: Watch) -> T:
    """Watch a `ParameterServer` of checkpoint-engine; call it on every rank, with a watch that is enabled on rank 0.

    It gets no step, so the watch counts syncs. The tensors are digested where they are registered, and an `update` of their
    checkpoint is a sync. The watch does not see tensors of files, nor the shares that other ranks register.
    """
    owner: Any = server
    is_known = INTERFACE.check(owner)
    if not INTERFACE.has_methods(owner):
        return server
    register, update, next_step = owner.register_checkpoint, owner.update, count_steps()
    checkpoints: dict[str, Mapping[str, str]] = {}

    @wraps(register)
    def watched_register(checkpoint_name: str, *arguments: Any, **keywords: Any) -> Any:
        named_tensors = keywords.get("named_tensors")
        if watch.enabled and is_known and named_tensors and not keywords.get("files"):
            checkpoints[checkpoint_name] = digests(named_tensors.items())
        else:
            checkpoints.pop(checkpoint_name, None)
        return register(checkpoint_name, *arguments, **keywords)

    @wraps(update)
    def watched_update(checkpoint_name: str, *arguments: Any, **keywords: Any) -> Any:
        with watch(step=next_step()) as sync:
            registered = checkpoints.get(checkpoint_name)
            if registered is None:
                sync.unseen("the checkpoint was registered from files, or before the watch")
            elif len(owner.get_metas() if hasattr(owner, "get_metas") else ()) > 1:
                sync.unseen("other ranks of checkpoint-engine registered shares of their own")
            else:
                sync.sent(dict(registered))
            return update(checkpoint_name, *arguments, **keywords)

    owner.register_checkpoint, owner.update = watched_register, watched_update
    return server
