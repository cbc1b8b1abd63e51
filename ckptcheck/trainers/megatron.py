"""The real megatron-core as a trainer: tensor, pipeline and expert parallel, on the CPU or on GPUs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.environments.interpreter import interpreter
from ckptcheck.errors import CkptcheckError
from ckptcheck.host.exchange import Exchange
from ckptcheck.host.host import START, Host
from ckptcheck.trainers.base import TrainerInfo, Weight
from ckptcheck.trainers.layout import Layout
from ckptcheck.trainers.megatron_settings import megatron_settings, megatron_table
from ckptcheck.trainers.remote import NAMES, RemoteTrainer
from ckptcheck.trainers.start import tensor_files

MODULE = "ckptcheck_far.megatron_trainer"


def start_megatron(
    source: Checkpoint,
    exchange: Exchange,
    *,
    layout: Layout | None = None,
    dtype: str = "float32",
    python: Path | None = None,
    log: Path | None = None,
    timeout: float | None = None,
) -> RemoteTrainer:
    """Load a Hugging Face checkpoint into megatron-core's GPTModel.

    python: of an environment with megatron-core, None for the one that ckptcheck built. log: where its processes print.
    timeout: see `RemoteTrainer`. Raises CkptcheckError for a model or layout that is not built here, VerbError, HostDied
    or HostHung when it does not start.
    """
    layout = layout or Layout()
    settings = megatron_settings(source.config, layout, dtype, source.target)
    config = source.config
    if config is None:  # megatron_settings has refused it
        raise CkptcheckError(f"{source.target} has no config.json")
    files = {name: str(path) for name, path in tensor_files(source).items()}
    return _started(
        {"settings": settings, "table": megatron_table(config), "files": files},
        exchange,
        layout,
        TrainerInfo("megatron", "", dtype, str(layout), config.architecture or ""),
        python=python,
        log=log,
        timeout=timeout,
        folder=source.source.local,
        config=config.value,
    )


def _started(
    load: dict[str, Any],
    exchange: Exchange,
    layout: Layout,
    info: TrainerInfo,
    *,
    python: Path | None,
    log: Path | None,
    timeout: float | None,
    folder: Path | None,
    config: dict[str, Any],
) -> RemoteTrainer:
    found = interpreter("megatron", python)
    host = Host(
        found.python, MODULE, name="megatron", env=found.variables, log=log, scratch=(exchange.folder,),
        start_timeout=START if timeout is None else timeout,
    )  # fmt: skip
    try:
        told = host.call("load", timeout=timeout, **load)
    except BaseException:
        host.close(0)
        raise
    weights = [
        Weight(part["name"], tuple(part["shape"]), NAMES[info.dtype], (weight["own"],), tuple(weight["owners"]))
        for weight in told["plan"]
        for part in weight["parts"]
    ]
    facts = {
        "torch": told["torch"],
        "device": "cuda" if told["gpus"] else "cpu",
        "backend": "nccl" if told["gpus"] else "gloo",
        "ranks": str(layout.world),
    }
    info = TrainerInfo(info.name, told["version"], info.dtype, info.layout, info.architecture, facts)
    return RemoteTrainer(host, info, weights, exchange=exchange, source=folder, config=config, timeout=timeout)
