"""Watches prime-rl's weight broadcast."""

from __future__ import annotations

import sys
from functools import wraps
from typing import Any, TypeVar

from ckptcheck.watch.interface import Interface
from ckptcheck.watch.passing import replaced
from ckptcheck.watch.watch import Watch

T = TypeVar("T")
INTERFACE = Interface("prime-rl", "2026-08-21", "559b44772", {"broadcast_weights": ("model", "step")})
SEND = "broadcast_state_dict"
"""The function by which NCCL's sender sends the tensors of one layer. It stands in the sender's module, on the main rank."""


def prime_rl(broadcast: T, watch: Watch) -> T:
    """Watch prime-rl's weight broadcast (what `setup_weight_broadcast` returns), with a watch that is enabled on rank 0.

    The step is prime-rl's. By NCCL the watch sees every tensor, as it is sent. Through files each rank writes its own
    share, and by NIXL the engine reads the tensors: the watch then sees the sync, and says that it does not see the
    tensors.
    """
    owner: Any = broadcast
    is_known = INTERFACE.check(owner)
    if not INTERFACE.has_methods(owner):
        return broadcast
    send = owner.broadcast_weights
    module = sys.modules[type(owner).__module__]

    @wraps(send)
    def watched(model: Any, step: int, *arguments: Any, **keywords: Any) -> Any:
        with watch(step=step) as sync:
            send_layer = getattr(module, SEND, None)
            if not is_known or send_layer is None:
                sync.unseen(f"{type(owner).__name__} sends nothing by {SEND}")
                return send(model, step, *arguments, **keywords)

            def watched_layer(state_dict: Any, *rest: Any, **options: Any) -> Any:
                return send_layer(sync.sent(state_dict), *rest, **options)

            with replaced(module, **{SEND: watched_layer}):
                return send(model, step, *arguments, **keywords)

    owner.broadcast_weights = watched
    return broadcast
