"""Starts the trainer that a user names, and packs what it holds where the engine is to serve it quantized."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.checkpoint.open import open_checkpoint
from ckptcheck.environments.interpreter import interpreter
from ckptcheck.errors import CkptcheckError
from ckptcheck.host.exchange import Exchange
from ckptcheck.trainers.base import Trainer
from ckptcheck.trainers.layout import Layout
from ckptcheck.trainers.megatron import start_megatron
from ckptcheck.trainers.quantized import QuantizedTrainer
from ckptcheck.trainers.remote import RemoteTrainer
from ckptcheck.trainers.schemes import IGNORED, scheme
from ckptcheck.trainers.transformers import start_transformers


def trainer(
    name: str,
    ckpt: Checkpoint,
    exchange: Exchange,
    layout: Layout,
    dtype: str,
    *,
    device: str = "auto",
    gpus: str | None = None,
    python: Path | None = None,
    scratch: Sequence[Path] = (),
) -> Trainer:
    """Start megatron or transformers with a checkpoint. device, gpus: see `start_megatron`. python: the user's own interpreter.

    Raises CkptcheckError for another name, and for a layout of several ranks where there is one process, and what the
    trainers raise.
    """
    if name == "megatron":
        return start_megatron(
            ckpt, exchange, layout=layout, dtype=dtype, device=device, gpus=gpus, python=python, scratch=scratch
        )
    if name != "transformers":
        raise CkptcheckError(f"there is no trainer {name}", "there are megatron and transformers")
    if layout.world > 1:
        raise CkptcheckError("--trainer transformers has one process: --tp, --pp and --ep are Megatron's")
    return start_transformers(ckpt, exchange, dtype=dtype, device=device, gpus=gpus, python=python, scratch=scratch)


def packed(
    held: Trainer,
    name: str,
    engine: str,
    exchange: Exchange,
    folder: Path,
    *,
    ignore: Sequence[str] | None = None,
    quantizer: str = "compressed-tensors",
    python: Path | None = None,
) -> QuantizedTrainer:
    """Pack what a trainer holds on its way to the engine, with the compressors that the engine's own Python has.

    name, ignore, quantizer: see schemes.py. folder: for what is written on the way. Closing it closes the trainer too.
    """
    shapes = {weight.name: weight.shape for weight in held.weights()}
    architecture = held.info.architecture or None
    entries = IGNORED if ignore is None else ignore
    chosen = scheme(name, shapes, architecture, engine, ignore=entries, quantizer=quantizer)

    def reference(checkpoint: Path, before: Trainer | None) -> Trainer:
        """Start transformers with unpacked weights, or load them into the process that has the last ones."""
        host = before.host if isinstance(before, RemoteTrainer) else None
        return start_transformers(open_checkpoint(str(checkpoint)), exchange, host=host, scratch=(folder,))

    found = interpreter(engine, python)
    return QuantizedTrainer(
        held, chosen, python=found.python, variables=found.variables, start=reference, exchange=exchange, folder=folder
    )
