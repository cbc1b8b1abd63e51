"""Finds the files with the source's tensors, and starts the worker process that loads them into a trainer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.errors import CkptcheckError
from ckptcheck.live.runtime.process.client import WorkerClient
from ckptcheck.live.runtime.process.errors import RemoteError
from ckptcheck.live.runtime.process.exchange import TensorExchange
from ckptcheck.live.runtime.process.gpus import gpu_variables
from ckptcheck.text.file_io import real_path

BUFFERS = (".rotary_emb.inv_freq", ".attention.bias", ".attn.bias", ".attn.masked_bias")
"""Tensors that old checkpoints hold and no model loads."""

PASSIVE_WAIT = {"OMP_WAIT_POLICY": "PASSIVE"}
"""Makes waiting threads sleep: spinning threads would take cores from other ranks and from the engine."""


@dataclass(frozen=True)
class TrainerProcess:
    """Where a trainer computes, and the worker in which it does."""

    device: str = "auto"
    """cpu, cuda, or auto: GPUs if there are any, one for each rank."""
    gpus: str | None = None
    """The numbers of the GPUs that it may see (process/gpus.py); None for all."""
    python: Path | None = None
    """An interpreter that has the trainer; None for the environment that ckptcheck built."""
    log: Path | None = None
    """The file that its processes print to."""
    timeout: float | None = None
    """Seconds for any one call, None for no limit."""
    host: WorkerClient | None = None
    """The worker of an earlier trainer of the same kind, to start faster: it has imported everything, and drops its model."""
    scratch: Sequence[Path] = ()
    """Folders of the caller that are removed if the caller is killed."""

    @property
    def gpu_variables(self) -> dict[str, str | None]:
        """The environment variables that show the worker its GPUs."""
        return dict(gpu_variables("" if self.device == "cpu" else self.gpus))


AS_IT_COMES = TrainerProcess()


def tensor_files(ckpt: Checkpoint) -> dict[str, Path]:
    """Return name → the safetensors file that holds it, for every tensor that a model loads.

    A tied head is left out even if it is stored. Raises CkptcheckError for a source that is not on this disk,
    is quantized, or cannot be read.
    """
    # the worker runs in another folder, so the path is absolute
    folder = real_path(ckpt.source.local) if ckpt.source.local is not None else None
    if folder is None:
        raise CkptcheckError(f"{ckpt.target} is not on this disk, and a trainer loads from there")
    broken = ckpt.list_broken()
    if broken or not ckpt.tensor_to_file:
        raise CkptcheckError(f"{broken[0] if broken else ckpt.target} cannot be read", hint="ckptcheck scan says why")
    if ckpt.config is not None and ckpt.config.get("quantization_config"):
        raise CkptcheckError(f"{ckpt.target} is quantized, and a trainer holds plain weights")
    tied = ckpt.config is not None and ckpt.config.get("tie_word_embeddings") is True
    return {
        name: folder / file
        for name, file in ckpt.tensor_to_file.items()
        if not name.endswith(BUFFERS) and not (tied and name == "lm_head.weight")
    }


def load_in_worker(
    process: TrainerProcess,
    python: Path,
    name: str,
    module: str | Path,
    variables: Mapping[str, str | None],
    exchange: TensorExchange,
    request: Mapping[str, Any],
) -> tuple[WorkerClient, dict[str, Any]]:
    """Have a worker load a model, and return the worker with its response.

    If the model cannot be loaded, a worker that this call started is closed, and the worker of `process` lives on; any
    other error closes either. python: of a worker that is started here. name: of the trainer, for messages.
    """
    host = process.host
    is_new_host = host is None
    if host is None:
        host = WorkerClient(
            python,
            module,
            name=name,
            env={**PASSIVE_WAIT, **variables},
            log=process.log,
            scratch=(exchange.folder, *process.scratch),
            start_timeout=process.timeout,
        )
    try:
        response: dict[str, Any] = host.call("load", timeout=process.timeout, **request)
    except RemoteError:
        if is_new_host:
            host.close()
        raise
    except BaseException:
        host.close(0)
        raise
    return host, response


def device_facts(response: Mapping[str, Any]) -> dict[str, str]:
    """Return the facts of a trainer about its torch and device. gpus: UUIDs of the ranks' GPUs; sees: of all GPUs it can use;
    nccl: the version of NCCL, on GPUs.
    """
    gpus, sees = [gpu for gpu in response.get("gpus", ()) if gpu], response.get("sees", ())
    device = "cuda" if gpus else "cpu"
    facts = {"torch": response["torch"], "device": device, "gpus": ",".join(gpus), "sees": ",".join(sees)}
    return facts | ({"nccl": response["nccl"]} if response.get("nccl") else {})
