"""The real megatron-core as a trainer: tensor, pipeline and expert parallel, on the CPU or on GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.environments.interpreter import interpreter
from ckptcheck.errors import CkptcheckError
from ckptcheck.host.exchange import Exchange
from ckptcheck.host.gpus import visible
from ckptcheck.host.host import Host
from ckptcheck.trainers.base import TrainerInfo, Weight
from ckptcheck.trainers.layout import Layout
from ckptcheck.trainers.megatron_settings import megatron_settings, megatron_table
from ckptcheck.trainers.remote import NAMES, RemoteTrainer
from ckptcheck.trainers.start import loaded, placed, tensor_files

MODULE = "ckptcheck_far.megatron_trainer"
ON_GPU = {
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",  # GPUs are counted before the ranks are forked, and must not be opened by that
    "CUDA_DEVICE_MAX_CONNECTIONS": "1",  # megatron-core orders its overlapping work so
}


def start_megatron(
    source: Checkpoint,
    exchange: Exchange,
    *,
    layout: Layout | None = None,
    dtype: str = "float32",
    head_fp32: bool = False,
    device: str = "auto",
    gpus: str | None = None,
    python: Path | None = None,
    log: Path | None = None,
    timeout: float | None = None,
    host: Host | None = None,
    scratch: Sequence[Path] = (),
) -> RemoteTrainer:
    """Load a Hugging Face checkpoint into megatron-core's GPTModel.

    head_fp32: the output head computes in float32. device: cpu, cuda, or auto: GPUs where there are any, one for each rank.
    gpus: numbers of those that it may see (host/gpus.py).
    python: of an environment with megatron-core, None for the one that ckptcheck built. log: where its processes print.
    timeout: see `RemoteTrainer`. host: of an earlier trainer of this kind, whose model is dropped; its process has imported
    everything already. scratch: folders of the caller's that are removed if the caller is killed.

    Raises CkptcheckError for a model or layout that is not built here, VerbError, HostDied or HostHung when it does not start.
    """
    layout = layout or Layout()
    settings = megatron_settings(source.config, layout, dtype, source.target, head_fp32=head_fp32)
    config = source.config
    if config is None:  # megatron_settings has refused it
        raise CkptcheckError(f"{source.target} has no config.json")
    request = {
        "settings": {**settings, "device": device},
        "table": megatron_table(config),
        "files": {name: str(path) for name, path in tensor_files(source).items()},
    }
    found = interpreter("megatron", python) if host is None else None
    host, told = loaded(
        host,
        found.python if found else Path(),
        MODULE,
        {**ON_GPU, **visible("" if device == "cpu" else gpus), **(found.variables if found else {})},
        exchange,
        request,
        log=log,
        timeout=timeout,
        scratch=scratch,
    )
    weights = [
        Weight(part["name"], tuple(part["shape"]), NAMES[dtype], (weight["own"],), tuple(weight["owners"]))
        for weight in told["plan"]
        for part in weight["parts"]
    ]
    facts = {
        **placed(told),
        "backend": "nccl" if told["sees"] else "gloo",
        "ranks": str(layout.world),
        "head_fp32": str(head_fp32),
    }
    info = TrainerInfo("megatron", told["version"], dtype, str(layout), config.architecture or "", facts)
    return RemoteTrainer(
        host, info, weights, exchange=exchange, source=source.source.local, config=config.value, timeout=timeout
    )
