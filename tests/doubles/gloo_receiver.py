"""Receives a trainer's broadcast, as an engine would."""

from __future__ import annotations

from typing import Any

import torch
from ckptcheck_worker.gloo import broadcast, join_for_sync
from ckptcheck_worker.shard_digest import digest


def receive(group: dict[str, Any], shapes: list[list[int]]) -> list[str]:
    """Return the digests of the received tensors, float32 of these shapes."""
    digests = []
    with join_for_sync(group, 1) as sender:
        for shape in shapes:
            tensor = torch.empty(shape)
            broadcast(sender, tensor)
            digests.append(digest(tensor))
    return digests


RPC_METHODS = {"receive": receive}
