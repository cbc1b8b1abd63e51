"""transformers as a trainer, in one process: a reference, and for users without Megatron or with another architecture."""

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
from ckptcheck.trainers.megatron_settings import DTYPES, refuse_critic
from ckptcheck.trainers.remote import NAMES, RemoteTrainer
from ckptcheck.trainers.start import loaded, placed, tensor_files

MODULE = "ckptcheck_far.transformers_trainer"


def start_transformers(
    source: Checkpoint,
    exchange: Exchange,
    *,
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
    """Load a Hugging Face checkpoint into transformers' own model; nothing of the checkpoint is executed.

    head_fp32: the output head computes in float32. device, gpus: see `start_megatron`.
    python: has torch and transformers 5, None for the environment of Megatron, which has both. log: where the process
    prints. timeout, host, scratch: see `start_megatron`.

    Raises CkptcheckError for a critic and for what cannot be loaded, VerbError, HostDied or HostHung when it does not start.
    """
    refuse_critic(source.config, source.target)
    if dtype not in DTYPES:
        raise CkptcheckError(f"a trainer holds float32 or bfloat16, not {dtype}")
    tensor_files(source)
    config, folder = source.config, source.source.local
    if config is None or folder is None:
        raise CkptcheckError(f"{source.target} has no config.json, so transformers cannot load it")
    variables = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error", **visible("" if device == "cpu" else gpus)}
    if python is None and host is None:
        found = interpreter("megatron")
        python, variables = found.python, {**found.variables, **variables}
    request = {
        "folder": str(folder.resolve()),
        "dtype": dtype,
        "head_fp32": head_fp32,
        "device": device,
    }  # its process lies elsewhere
    host, told = loaded(
        host, python or Path(), MODULE, variables, exchange, request, log=log, timeout=timeout, scratch=scratch
    )
    weights = [Weight(part["name"], tuple(part["shape"]), NAMES[dtype], (part["name"],), (0,)) for part in told["plan"]]
    facts = {**placed(told), "ranks": "1", "head_fp32": str(head_fp32)}
    info = TrainerInfo("transformers", told["version"], dtype, "", config.architecture or "", facts)
    return RemoteTrainer(host, info, weights, exchange=exchange, source=folder, config=config.value, timeout=timeout)
