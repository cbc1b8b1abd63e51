"""A gloo process group of one sender (rank 0, the trainer) and the workers of an engine (rank 1 and up), over loopback.

The keys of the store are those of torch.distributed, because SGLang joins with torch.distributed.

The client chooses {"host", "port", "world_size", "key", "timeout"} and gives it to both sides. The sender hosts the store at that
port; every sync has its own key. Both sides know from the plan which tensors follow, so only bytes travel.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

TIMEOUT = 120.0
"""Seconds that one side waits for the other."""


def group_timeout(group: dict[str, Any]) -> timedelta:
    """Return how long one side waits for the other."""
    return timedelta(seconds=float(group.get("timeout", TIMEOUT)))


def open_store(group: dict[str, Any], rank: int, device: str) -> Any:
    """Return the store of the group once all members are connected; its keys are nested as torch.distributed nests them.

    device: the first device type of the torch.distributed backend that the other members use: SGLang nests its keys by it.
    """
    from torch.distributed import PrefixStore, TCPStore

    world = int(group["world_size"])
    timeout = group_timeout(group)
    store = TCPStore(group["host"], int(group["port"]), world, rank == 0, timeout=timeout, wait_for_workers=True)
    for prefix in (str(group["key"]), f"{group['key']}/", f"{device}/"):
        store = PrefixStore(prefix, store)
    return store


def join(group: dict[str, Any], rank: int) -> Any:
    """Return the process group once all members have joined. Raises RuntimeError (torch's own types) after the timeout."""
    from torch.distributed import ProcessGroupGloo

    options = ProcessGroupGloo._Options()
    options._timeout = group_timeout(group)
    # without a device gloo takes the address of the machine's hostname
    options._devices = [ProcessGroupGloo.create_device(hostname=group["host"])]
    process_group = ProcessGroupGloo(open_store(group, rank, "cpu"), rank, int(group["world_size"]), options)
    process_group.barrier().wait()
    return process_group


@contextlib.contextmanager
def join_for_sync(group: dict[str, Any], rank: int) -> Iterator[Any]:
    """Join the group for one sync; after a sync without errors, wait for the other members."""
    process_group = join(group, rank)
    yield process_group
    process_group.barrier().wait()


def broadcast(group: Any, tensor: Any) -> None:
    """Send a contiguous tensor from rank 0, or receive into it: as bytes, so any dtype works."""
    import torch
    from torch.distributed import BroadcastOptions

    if not tensor.numel():
        return
    options = BroadcastOptions()
    options.rootRank = 0
    options.rootTensor = 0
    group.broadcast([tensor.detach().view(-1).view(torch.uint8)], options).wait()
