"""The process group of a sync by gloo or NCCL: who meets where (see ckptcheck_far/communicator.py)."""

from __future__ import annotations

import dataclasses
import socket
from collections.abc import Mapping, Sequence
from typing import Any

from ckptcheck.engines.base import Parcel

HOST = "127.0.0.1"
PLANES = {"gloo": {"vllm": "gloo", "sglang": "gloo"}, "nccl": {"vllm": "nccl-id", "sglang": "nccl"}}
"""Transport → how an engine meets whoever sends by it. All others have no group."""


def rendezvous(ranks: int, key: str, *, timeout: float = 120.0, plane: str = "gloo") -> dict[str, Any]:
    """Return the group of a trainer and an engine of so many ranks, at a port of this machine that was free just now.

    key: another one for every sync. plane: see PLANES; nccl-id also needs a "unique_id". timeout: seconds that a side waits for
    the other. Give it to `Trainer.send` as it is and, by `addressed`, to `Engine.refit`; both wait for each other, so call them in
    two threads.
    """
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port = probe.getsockname()[1]
    return {"plane": plane, "host": HOST, "port": port, "world_size": 1 + ranks, "key": key, "timeout": timeout}


def addressed(plan: Sequence[Parcel], group: Mapping[str, Any]) -> list[Parcel]:
    """Return the buckets of a trainer's plan as parcels that travel in the group."""
    return [dataclasses.replace(parcel, address=group) for parcel in plan]
