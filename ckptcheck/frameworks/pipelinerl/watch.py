"""Watches PipelineRL's weight updates."""

from __future__ import annotations

from functools import wraps
from typing import Any, TypeVar

from ckptcheck.watch.interface import Interface
from ckptcheck.watch.passing import WatchedGroup
from ckptcheck.watch.watch import Watch

T = TypeVar("T")
INTERFACE = Interface(
    "PipelineRL", "2026-06-19", "58d3934", {"send_weight_update": ("version",), "request_weight_updates": ("message",)}
)


def pipelinerl(manager: T, watch: Watch) -> T:
    """Watch PipelineRL's `WeightUpdateManager` of the finetuning loop, on every rank, with a watch that is enabled on rank 0.

    The step is PipelineRL's version, the number of samples that were trained. The names come with the request to the engines, and
    each tensor as it is broadcast, with ZeRO stage 3 and without.
    """
    owner: Any = manager
    if not INTERFACE.check(owner):
        return manager
    send = owner.send_weight_update

    @wraps(send)
    def watched(version: int, *arguments: Any, **keywords: Any) -> Any:
        group, request = owner.actor_update_group, owner.request_weight_updates
        with watch(step=int(version)) as sync:
            if group is None:  # on all ranks but the first
                return send(version, *arguments, **keywords)

            def watched_request(message: Any) -> Any:
                owner.actor_update_group = WatchedGroup(group, sync, (info.name for info in message.parameters_info))
                return request(message)

            owner.request_weight_updates = watched_request
            try:
                return send(version, *arguments, **keywords)
            finally:
                owner.actor_update_group, owner.request_weight_updates = group, request

    owner.send_weight_update = watched
    return manager
