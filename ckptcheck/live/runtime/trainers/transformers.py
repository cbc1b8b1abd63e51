"""transformers as a trainer, in one process: the reference, and the trainer for models that Megatron does not build."""

from __future__ import annotations

from pathlib import Path

from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.errors import CkptcheckError
from ckptcheck.live.runtime.environments.interpreter import find_interpreter
from ckptcheck.live.runtime.process.exchange import TensorExchange
from ckptcheck.live.runtime.trainers.base import TrainerInfo, Weight
from ckptcheck.live.runtime.trainers.megatron_settings import DTYPES, refuse_critic
from ckptcheck.live.runtime.trainers.remote import NAMES, RemoteTrainer
from ckptcheck.live.runtime.trainers.spawn import (
    AS_IT_COMES,
    TrainerProcess,
    device_facts,
    load_in_worker,
    tensor_files,
)
from ckptcheck.text.file_io import real_path

MODULE = "ckptcheck_worker.transformers_trainer"


def start_transformers(
    source: Checkpoint,
    exchange: TensorExchange,
    *,
    dtype: str = "float32",
    head_fp32: bool = False,
    process: TrainerProcess = AS_IT_COMES,
) -> RemoteTrainer:
    """Load a Hugging Face checkpoint into transformers' own model, without running any code of the checkpoint.

    Args:
        source: the checkpoint.
        exchange: where the trainer writes exported weights.
        dtype: float32 or bfloat16.
        head_fp32: the output head computes in float32.
        process: where it computes, and in which worker. Its Python needs torch and transformers 5; the default is the
            Python of Megatron's environment, which has both.

    Raises:
        CkptcheckError: the source is a critic, or cannot be loaded.
        RemoteError, WorkerDied, WorkerTimeout: the trainer does not start.
    """
    refuse_critic(source.config, source.target)
    if dtype not in DTYPES:
        raise CkptcheckError(f"a trainer holds float32 or bfloat16, not {dtype}")
    tensor_files(source)
    config, folder = source.config, source.source.local
    if config is None or folder is None:
        raise CkptcheckError(f"{source.target} has no config.json, so transformers cannot load it")
    variables: dict[str, str | None] = {
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_VERBOSITY": "error",
        **process.gpu_variables,
    }
    python = process.python
    if python is None and process.host is None:
        worker_python = find_interpreter("megatron")
        python, variables = worker_python.python, {**worker_python.variables, **variables}
    # the worker runs in another folder, so the path is absolute
    request = {
        "folder": str(real_path(folder)),
        "dtype": dtype,
        "head_fp32": head_fp32,
        "device": process.device,
    }
    host, response = load_in_worker(process, python or Path(), "transformers", MODULE, variables, exchange, request)
    weights = [
        Weight(part["name"], tuple(part["shape"]), NAMES[dtype], (part["name"],), (0,)) for part in response["plan"]
    ]
    facts = {**device_facts(response), "ranks": "1", "head_fp32": str(head_fp32)}
    info = TrainerInfo("transformers", response["version"], dtype, "", config.architecture or "", facts)
    return RemoteTrainer(
        host, info, weights, exchange=exchange, source=folder, config=config.value, timeout=process.timeout
    )
