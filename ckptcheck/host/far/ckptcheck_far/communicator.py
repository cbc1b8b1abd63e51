"""How a trainer broadcasts weights to an engine: one call, over gloo or over NCCL in the two ways in which engines meet.

gloo      vLLM (by vllm_gloo.py) and SGLang; bytes, so any dtype goes
nccl      SGLang: torch.distributed's NCCL at a store (weight_updater.py init_weights_update_group)
nccl-id   vLLM: a bare communicator of which both sides know the unique id (`nccl_unique_id_b64` in nccl_common.py of vLLM
          0.32). So the trainer's Python needs no vLLM: over a store, vLLM sends a pickle of a class of its own.

Over NCCL every weight travels as itself, one broadcast each, as engines that were not told of packing receive it.
"""

from __future__ import annotations

import base64
import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from . import gloo

Broadcast = Callable[[Any], None]
"""Sends a contiguous tensor of this rank's device."""


@contextlib.contextmanager
def joined(group: dict[str, Any]) -> Iterator[Broadcast]:
    """Be rank 0 of the group for a while. Raises ValueError for a plane that has no group, RuntimeError of torch's."""
    ways = {"gloo": _gloo, "nccl": _nccl, "nccl-id": _nccl_by_id}
    if group["plane"] not in ways:
        raise ValueError(f"weights are not broadcast over {group['plane']}; there are {', '.join(ways)}")
    with ways[group["plane"]](group) as broadcast:
        yield broadcast


def send(group: dict[str, Any], weights: Iterator[tuple[str, Any]]) -> None:
    """Broadcast weights in their order as rank 0 of a group."""
    with joined(group) as broadcast:
        for _, weight in weights:
            broadcast(weight.detach().contiguous())


def unique_id() -> str:
    """Return an id for one group (base64). The process that asks must be its rank 0: it listens for the others."""
    from torch.cuda import nccl

    return base64.b64encode(nccl.unique_id()).decode()


@contextlib.contextmanager
def _gloo(group: dict[str, Any]) -> Iterator[Broadcast]:
    with gloo.joined(group, 0) as made:
        yield lambda tensor: gloo.broadcast(made, tensor)


@contextlib.contextmanager
def _nccl(group: dict[str, Any]) -> Iterator[Broadcast]:
    import torch
    from torch.distributed import BroadcastOptions, ProcessGroupNCCL

    options = ProcessGroupNCCL.Options()
    options._timeout = gloo.patience(group)
    made = ProcessGroupNCCL(gloo.store(group, 0, "cuda"), 0, int(group["world_size"]), options)

    def broadcast(tensor: Any) -> None:
        how = BroadcastOptions()
        how.rootRank = how.rootTensor = 0
        made.broadcast([tensor], how).wait()

    yield broadcast
    torch.cuda.synchronize()  # a barrier would have to guess the others' devices


@contextlib.contextmanager
def _nccl_by_id(group: dict[str, Any]) -> Iterator[Broadcast]:
    import torch
    from torch.cuda import nccl

    member = nccl.init_rank(int(group["world_size"]), base64.b64decode(group["unique_id"]), 0)
    nccl.all_reduce(
        [torch.zeros(1, device="cuda")], comms=[member]
    )  # vLLM's end warms up so (PyNcclCommunicator._init_comm)
    yield lambda tensor: nccl.broadcast([tensor], comms=[member])  # from its rank 0, on the stream that made the tensor
    torch.cuda.current_stream().synchronize()
