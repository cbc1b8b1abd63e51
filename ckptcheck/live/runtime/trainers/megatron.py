"""The real megatron-core as a trainer: tensor, pipeline and expert parallel, on the CPU or on GPUs."""

from __future__ import annotations

from pathlib import Path

from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.errors import CkptcheckError
from ckptcheck.live.runtime.environments.interpreter import find_interpreter
from ckptcheck.live.runtime.process.exchange import TensorExchange
from ckptcheck.live.runtime.trainers.base import TrainerInfo, Weight
from ckptcheck.live.runtime.trainers.layout import ParallelLayout
from ckptcheck.live.runtime.trainers.megatron_settings import megatron_settings, megatron_table
from ckptcheck.live.runtime.trainers.remote import NAMES, RemoteTrainer
from ckptcheck.live.runtime.trainers.spawn import (
    AS_IT_COMES,
    TrainerProcess,
    device_facts,
    load_in_worker,
    tensor_files,
)

MODULE = "ckptcheck_worker.megatron_trainer"
ON_GPU = {
    # the worker counts the GPUs before it forks its ranks, and must not open them for that
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
    # megatron-core needs it to order its overlapping work
    "CUDA_DEVICE_MAX_CONNECTIONS": "1",
}


def start_megatron(
    source: Checkpoint,
    exchange: TensorExchange,
    *,
    layout: ParallelLayout | None = None,
    dtype: str = "float32",
    head_fp32: bool = False,
    process: TrainerProcess = AS_IT_COMES,
) -> RemoteTrainer:
    """Load a Hugging Face checkpoint into megatron-core's GPTModel.

    Args:
        source: the checkpoint.
        exchange: where the trainer writes exported weights.
        layout: None for one rank.
        dtype: what it computes in, as torch spells it.
        head_fp32: the output head computes in float32.
        process: where it computes, and in which worker.

    Raises:
        CkptcheckError: this trainer cannot build the model, or not in this layout.
        RemoteError, WorkerDied, WorkerTimeout: it does not start.
    """
    layout = layout or ParallelLayout()
    settings = megatron_settings(source.config, layout, dtype, source.target, head_fp32=head_fp32)
    config = source.config
    # for the type checker: megatron_settings refuses a source without a config
    if config is None:
        raise CkptcheckError(f"{source.target} has no config.json")
    request = {
        "settings": {**settings, "device": process.device},
        "table": megatron_table(config),
        "files": {name: str(path) for name, path in tensor_files(source).items()},
    }
    worker_python = find_interpreter("megatron", process.python) if process.host is None else None
    host, response = load_in_worker(
        process, worker_python.python if worker_python else Path(), "megatron", MODULE,
        {**ON_GPU, **process.gpu_variables, **(worker_python.variables if worker_python else {})}, exchange, request,
    )  # fmt: skip
    weights = [
        Weight(part["name"], tuple(part["shape"]), NAMES[dtype], (weight["own"],), tuple(weight["owners"]))
        for weight in response["plan"]
        for part in weight["parts"]
    ]
    facts = {
        **device_facts(response),
        "backend": "nccl" if response["sees"] else "gloo",
        "ranks": str(layout.world_size),
        "head_fp32": str(head_fp32),
    }
    info = TrainerInfo("megatron", response["version"], dtype, str(layout), config.architecture or "", facts)
    return RemoteTrainer(
        host, info, weights, exchange=exchange, source=source.source.local, config=config.value, timeout=process.timeout
    )
