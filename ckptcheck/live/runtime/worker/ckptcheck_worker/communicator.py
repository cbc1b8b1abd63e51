"""Broadcasts weights from a trainer to an engine, over gloo or over NCCL in the two ways in which engines join a group.

gloo      vLLM (by vllm_gloo.py) and SGLang; sends bytes, so any dtype works
nccl      SGLang: torch.distributed's NCCL with a store (weight_updater.py init_weights_update_group)
nccl-id   vLLM: a bare communicator whose unique id both sides know (`nccl_unique_id_b64` in nccl_common.py of vLLM 0.32).
          So the trainer's Python needs no vLLM; over a store, vLLM would send a pickle of one of its own classes.

Over NCCL every weight is one broadcast of its own: engines receive weights so unless the update declares them as packed.
"""

from __future__ import annotations

import base64
import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from . import gloo

Broadcast = Callable[[Any], None]
"""Sends a contiguous tensor from this rank's device."""


@contextlib.contextmanager
def join_as_sender(group: dict[str, Any]) -> Iterator[Broadcast]:
    """Join the group as rank 0. Raises ValueError for an address that is no group, RuntimeError (torch's) if joining fails."""
    if group["kind"] not in JOINS:
        raise ValueError(f"weights are not broadcast over {group['kind']}; there are {', '.join(JOINS)}")
    with JOINS[group["kind"]](group) as broadcast:
        yield broadcast


def send_weights(group: dict[str, Any], weights: Iterator[tuple[str, Any]]) -> None:
    """Broadcast weights in their order as rank 0 of a group."""
    with join_as_sender(group) as broadcast:
        for _, weight in weights:
            broadcast(weight.detach().contiguous())


def unique_id() -> str:
    """Return an id for one group (base64). The calling process must become its rank 0: it listens for the others."""
    from torch.cuda import nccl

    return base64.b64encode(nccl.unique_id()).decode()


@contextlib.contextmanager
def _gloo(group: dict[str, Any]) -> Iterator[Broadcast]:
    with gloo.join_for_sync(group, 0) as process_group:
        yield lambda tensor: gloo.broadcast(process_group, tensor)


@contextlib.contextmanager
def _nccl(group: dict[str, Any]) -> Iterator[Broadcast]:
    import torch
    from torch.distributed import BroadcastOptions, ProcessGroupNCCL

    options = ProcessGroupNCCL.Options()
    options._timeout = gloo.group_timeout(group)
    process_group = ProcessGroupNCCL(gloo.open_store(group, 0, "cuda"), 0, int(group["world_size"]), options)

    def broadcast(tensor: Any) -> None:
        broadcast_options = BroadcastOptions()
        broadcast_options.rootRank = broadcast_options.rootTensor = 0
        process_group.broadcast([tensor], broadcast_options).wait()

    yield broadcast
    # no barrier: it would have to guess the devices of the other ranks
    torch.cuda.synchronize()


@contextlib.contextmanager
def _nccl_by_id(group: dict[str, Any]) -> Iterator[Broadcast]:
    import torch
    from torch.cuda import nccl

    communicator = nccl.init_rank(int(group["world_size"]), base64.b64decode(group["unique_id"]), 0)
    # vLLM's end warms up with one all_reduce (PyNcclCommunicator._init_comm)
    nccl.all_reduce([torch.zeros(1, device="cuda")], comms=[communicator])
    # broadcasts from rank 0, on the stream that computed the tensor
    yield lambda tensor: nccl.broadcast([tensor], comms=[communicator])
    torch.cuda.current_stream().synchronize()


JOINS: dict[str, Callable[[dict[str, Any]], contextlib.AbstractContextManager[Broadcast]]] = {
    "gloo": _gloo,
    "nccl": _nccl,
    "nccl-id": _nccl_by_id,
}
"""Kind of a group's address (`Transport.rendezvous`) → how the sender joins it."""
