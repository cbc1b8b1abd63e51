"""A process group between one sender (rank 0, the trainer) and the workers of an engine (rank 1 and up), over loopback.

A member may have made its end with torch.distributed (SGLang does), so keys are named as there.

The near side chooses {"host", "port", "world_size", "key", "timeout"} and gives it to both. The sender holds the store at
that port; a key is for one sync. Both sides know from the plan what is sent, so only bytes travel.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

TIMEOUT = 120.0
"""Seconds that a side waits for the other."""


def patience(group: dict[str, Any]) -> timedelta:
    """Return how long a side waits for the other."""
    return timedelta(seconds=float(group.get("timeout", TIMEOUT)))


def store(group: dict[str, Any], rank: int, device: str) -> Any:
    """Return the store that the members meet at, once everybody is there; keys as torch.distributed nests them.

    device: the first kind that torch.distributed's backend of the other members serves: SGLang's end is made by it.
    """
    from torch.distributed import PrefixStore, TCPStore

    world = int(group["world_size"])
    held = TCPStore(group["host"], int(group["port"]), world, rank == 0, timeout=patience(group), wait_for_workers=True)
    for prefix in (str(group["key"]), f"{group['key']}/", f"{device}/"):
        held = PrefixStore(prefix, held)
    return held


def join(group: dict[str, Any], rank: int) -> Any:
    """Return the process group once everybody is there. Raises RuntimeError (torch's own kinds) where they are not in time."""
    from torch.distributed import ProcessGroupGloo

    options = ProcessGroupGloo._Options()
    options._timeout = patience(group)
    options._devices = [ProcessGroupGloo.create_device(hostname=group["host"])]  # else that of the machine's name
    made = ProcessGroupGloo(store(group, rank, "cpu"), rank, int(group["world_size"]), options)
    made.barrier().wait()
    return made


@contextlib.contextmanager
def joined(group: dict[str, Any], rank: int) -> Iterator[Any]:
    """Be a member of the group for a while; on the way out wait for the others where nothing went wrong."""
    made = join(group, rank)
    yield made
    made.barrier().wait()


def broadcast(group: Any, tensor: Any) -> None:
    """Send a contiguous tensor from rank 0, or receive into it: its bytes, so any dtype goes."""
    import torch
    from torch.distributed import BroadcastOptions

    if not tensor.numel():
        return
    options = BroadcastOptions()
    options.rootRank = 0
    options.rootTensor = 0
    group.broadcast([tensor.detach().view(-1).view(torch.uint8)], options).wait()
