"""Where a rank computes: the one place that knows of GPUs. Ranks on GPUs were not tried."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

PATIENCE = timedelta(minutes=10)
"""How long a rank waits for another in a collective; a dead one is noticed at once."""


def join(rank: int, world: int, meeting: str, gpus: bool) -> Any:
    """Join the trainer's process group and return this rank's device. meeting: a file that the ranks meet at.

    gpus: one for each rank, and NCCL; else the CPU and gloo, over the loopback interface only.
    """
    import torch
    import torch.distributed as dist

    if gpus:
        torch.cuda.set_device(rank)
        device, backend = torch.device("cuda", rank), "nccl"
    else:
        from .megatron_cpu import without_gpu

        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
        torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // world))
        without_gpu()
        device, backend = torch.device("cpu"), "gloo"
    store = dist.FileStore(meeting, world)
    dist.init_process_group(backend, store=store, rank=rank, world_size=world, timeout=PATIENCE)
    return device
