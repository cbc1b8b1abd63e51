"""Where a rank computes: the one place that knows of GPUs. Ranks on GPUs were not yet run."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

PATIENCE = timedelta(minutes=10)
"""How long a rank waits for another in a collective; a dead one is noticed at once."""


def gpus(wanted: str, ranks: int) -> bool:
    """Say whether the ranks compute on GPUs, one each. wanted: cpu, cuda, or auto: where there is one.

    Asked before ranks are forked, so the driver must not be started: torch counts by NVML, and answers `is_available` so where
    PYTORCH_NVML_BASED_CUDA_CHECK is 1. Raises RuntimeError where there are too few.
    """
    import torch

    number = 0 if wanted == "cpu" else torch.cuda.device_count()
    if wanted == "cuda" and not number:
        raise RuntimeError(f"torch {torch.__version__} sees no GPU")
    if number and number < ranks:
        raise RuntimeError(
            f"{ranks} ranks need {ranks} GPUs, for NCCL takes one rank a GPU, and there is {number}: fewer ranks, or --device cpu"
            if number == 1
            else f"{ranks} ranks need {ranks} GPUs, for NCCL takes one rank a GPU, and there are {number}"
        )
    return bool(number)


def join(rank: int, world: int, meeting: str, gpus: bool) -> Any:
    """Join the trainer's process group and return this rank's device. meeting: a file that the ranks meet at.

    gpus: one for each rank, and NCCL; else the CPU and gloo, over the loopback interface only.
    """
    import torch
    import torch.distributed as dist

    if gpus:
        torch.cuda.set_device(rank)
        device, backend = torch.device("cuda", rank), "nccl"
        without_transformer_engine()
    else:
        from .megatron_cpu import without_gpu

        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
        torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // world))
        without_gpu()
        device, backend = torch.device("cpu"), "gloo"
    store = dist.FileStore(meeting, world)
    dist.init_process_group(backend, store=store, rank=rank, world_size=world, timeout=PATIENCE)
    return device


def without_transformer_engine() -> None:
    """Let the router of megatron-core 0.16.1 run where there is none: it asks for a name that is bound only then."""
    import megatron.core.transformer.moe.moe_utils as moe_utils

    if not hasattr(moe_utils, "te_general_gemm"):
        moe_utils.te_general_gemm = None
