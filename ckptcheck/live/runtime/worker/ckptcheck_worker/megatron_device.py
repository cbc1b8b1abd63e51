"""Chooses the device of a rank: the only module of the trainer that knows about GPUs. Ranks on GPUs have not been run yet."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

COLLECTIVE_TIMEOUT = timedelta(minutes=10)
"""How long a rank waits for another in a collective; a dead rank is noticed at once."""


def should_use_gpus(device: str, ranks: int) -> bool:
    """Return whether the ranks compute on GPUs, one each. device: cpu, cuda, or auto (GPUs if there are any).

    Runs before the ranks are forked, so it must not initialize the CUDA driver: torch counts GPUs by NVML, and `is_available` does
    so only where PYTORCH_NVML_BASED_CUDA_CHECK is 1. Raises RuntimeError if there are too few GPUs.
    """
    import torch

    number = 0 if device == "cpu" else torch.cuda.device_count()
    if device == "cuda" and not number:
        raise RuntimeError(f"torch {torch.__version__} sees no GPU")
    if number and number < ranks:
        raise RuntimeError(
            f"{ranks} ranks need {ranks} GPUs, for NCCL takes one rank a GPU, and there is 1: use fewer, or --set device=cpu"
            if number == 1
            else f"{ranks} ranks need {ranks} GPUs, for NCCL takes one rank a GPU, and there are {number}"
        )
    return bool(number)


def join_process_group(rank: int, world: int, store_file: str, use_gpus: bool) -> Any:
    """Join the trainer's process group and return this rank's device. store_file: the file through which the ranks connect.

    use_gpus: NCCL with one GPU for each rank; if False, the CPU and gloo, over the loopback interface only.
    """
    import torch
    import torch.distributed as dist

    if use_gpus:
        torch.cuda.set_device(rank)
        device, backend = torch.device("cuda", rank), "nccl"
        patch_router()
    else:
        from .megatron_cpu import patch_megatron_for_cpu

        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
        torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // world))
        patch_megatron_for_cpu()
        device, backend = torch.device("cpu"), "gloo"
    store = dist.FileStore(store_file, world)
    dist.init_process_group(backend, store=store, rank=rank, world_size=world, timeout=COLLECTIVE_TIMEOUT)
    return device


def patch_router() -> None:
    """Let the router of megatron-core 0.16.1 run without Transformer Engine: it reads a name that only that package binds."""
    import megatron.core.transformer.moe.moe_utils as moe_utils

    if not hasattr(moe_utils, "te_general_gemm"):
        moe_utils.te_general_gemm = None
