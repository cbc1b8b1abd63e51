"""Starts the trainer that a user names, and packs its weights for an engine that serves them quantized."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import cast

from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.checkpoint.open import open_checkpoint
from ckptcheck.errors import CkptcheckError
from ckptcheck.live.runtime.environments.interpreter import find_interpreter
from ckptcheck.live.runtime.process.exchange import TensorExchange
from ckptcheck.live.runtime.trainers.base import Trainer
from ckptcheck.live.runtime.trainers.layout import ParallelLayout
from ckptcheck.live.runtime.trainers.megatron import start_megatron
from ckptcheck.live.runtime.trainers.quantized import QuantizedTrainer
from ckptcheck.live.runtime.trainers.remote import RemoteTrainer
from ckptcheck.live.runtime.trainers.schemes import DEFAULT_IGNORE, build_scheme
from ckptcheck.live.runtime.trainers.spawn import TrainerProcess
from ckptcheck.live.runtime.trainers.transformers import start_transformers

TRAINERS = ("transformers", "megatron")
"""Names of the trainers."""


def check_trainer(name: str, layout: ParallelLayout) -> None:
    """Raise CkptcheckError for an unknown trainer, and for transformers with several ranks. It starts nothing."""
    if name not in TRAINERS:
        raise CkptcheckError(f"there is no trainer {name}", f"choose {' or '.join(reversed(TRAINERS))}")
    if name == "transformers" and layout.world_size > 1:
        raise CkptcheckError("--trainer transformers has one process: --tp, --pp and --ep are Megatron's")


def start_trainer(
    name: str,
    ckpt: Checkpoint,
    exchange: TensorExchange,
    layout: ParallelLayout,
    dtype: str,
    *,
    device: str = "auto",
    gpus: str | None = None,
    python: Path | None = None,
    scratch: Sequence[Path] = (),
) -> Trainer:
    """Start megatron or transformers with a checkpoint. device, gpus, python, scratch: see `TrainerProcess`.

    Raises CkptcheckError as `check_trainer` does; RemoteError, WorkerDied or WorkerTimeout if the trainer does not start.
    """
    check_trainer(name, layout)
    process = TrainerProcess(device, gpus, python, scratch=scratch)
    if name == "megatron":
        return start_megatron(ckpt, exchange, layout=layout, dtype=dtype, process=process)
    return start_transformers(ckpt, exchange, dtype=dtype, process=process)


def quantize_trainer(
    held: Trainer,
    name: str,
    engine: str,
    exchange: TensorExchange,
    folder: Path,
    *,
    ignore: Sequence[str] | None = None,
    quantizer: str = "compressed-tensors",
    python: Path | None = None,
) -> Trainer:
    """Wrap a trainer so that its weights are packed for the engine, by compressed-tensors in the engine's Python.

    held: the trainer; closing the result closes it too. name, ignore, quantizer: see schemes.py. folder: for checkpoints
    that the result writes.
    """
    shapes = {weight.name: weight.shape for weight in held.weights()}
    architecture = held.info.architecture or None
    entries = DEFAULT_IGNORE if ignore is None else ignore
    scheme = build_scheme(name, shapes, architecture, engine, ignore=entries, quantizer=quantizer)

    def reference(checkpoint: Path, previous: Trainer | None) -> Trainer:
        """Start transformers with unpacked weights, if possible in the process of the previous reference."""
        host = previous.host if isinstance(previous, RemoteTrainer) else None
        return start_transformers(
            open_checkpoint(str(checkpoint)), exchange, process=TrainerProcess(host=host, scratch=(folder,))
        )

    worker_python = find_interpreter(engine, python)
    trainer = QuantizedTrainer(
        held,
        scheme,
        python=worker_python.python,
        variables=worker_python.variables,
        start=reference,
        exchange=exchange,
        folder=folder,
    )
    return cast(Trainer, trainer)
