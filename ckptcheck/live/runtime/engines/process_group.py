"""The address of the process group of a sync by gloo or NCCL (see ckptcheck_worker/communicator.py)."""

from __future__ import annotations

import dataclasses
import socket
from collections.abc import Mapping, Sequence
from typing import Any

from ckptcheck.live.runtime.engines.base import Bucket

HOST = "127.0.0.1"


def create_rendezvous(ranks: int, key: str, *, timeout: float = 120.0, kind: str = "gloo") -> dict[str, Any]:
    """Return the address of a group of one trainer and an engine of so many ranks, at a free port of this machine.

    key: a new one for every sync. kind: `Transport.rendezvous`; nccl-id also needs a "unique_id". timeout: seconds that one side
    waits for the other. Pass the address to `Trainer.send` and, through `address_buckets`, to `Engine.update_weights`. Both wait
    for each other, so call them in two threads.
    """
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port = probe.getsockname()[1]
    return {"kind": kind, "host": HOST, "port": port, "world_size": 1 + ranks, "key": key, "timeout": timeout}


def address_buckets(plan: Sequence[Bucket], group: Mapping[str, Any]) -> list[Bucket]:
    """Return the buckets of a trainer's plan with the group as their address."""
    return [dataclasses.replace(bucket, address=group) for bucket in plan]
