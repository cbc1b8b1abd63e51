"""Checks that a trainer's weights can reach an engine by a transport, before anything is sent."""

from __future__ import annotations

from ckptcheck.errors import CkptcheckError
from ckptcheck.live.runtime.engines.base import Updatable
from ckptcheck.live.runtime.engines.transports import Transport, join_names, require_device, transports_of
from ckptcheck.live.runtime.trainers.base import GpuTrainer, Trainer


def check_devices(
    transport: Transport, engine: str, device: str, trainer_gpus: str | None, engine_gpus: str | None, ranks: int = 1
) -> None:
    """Check, before anything starts, what the options already say about the devices of a transport.

    Args:
        transport: the row of the transport.
        engine: the engine's name, for the message.
        device: the trainer's device as the user gave it: auto, cpu or cuda.
        trainer_gpus: the GPUs of the trainer as the user gave them (``0,1``); None if he did not.
        engine_gpus: those of the engine; it takes the first of them, one for each rank.
        ranks: of the engine.

    Raises:
        CkptcheckError: for a transport between GPUs with a trainer on the CPU, and for a broadcast between ranks on one GPU.
    """
    if not transport.is_between_gpus:
        return
    default = f"--transport {transports_of(engine)[0].name}"
    if device == "cpu":
        raise CkptcheckError(
            f"{transport.name} carries weights between GPUs, and the trainer computes on the CPU",
            f"--device cuda, or {default}",
        )
    sender = (trainer_gpus or "").split(",")[0]
    if transport.sender == "group" and sender and sender in (engine_gpus or "").split(",")[:ranks]:
        raise CkptcheckError(
            f"NCCL refuses two ranks on one GPU, and trainer and {engine} share {sender}",
            f"--transport {_on_shared_gpu(engine).name}, or another GPU by --engine-gpus",
        )


def check_transport(trainer: Trainer, engine: Updatable, name: str) -> None:
    """Raise CkptcheckError, with what would work, if the transport cannot carry weights from this trainer to this engine."""
    trainer_facts, engine_facts = trainer.info.facts, engine.info.facts
    device = engine_facts.get("device", "")
    transport = next((row for row in engine.transports if row.name == name), None)
    if transport is None:
        require_device(engine.info.name, name, device)
        raise CkptcheckError(
            f"{engine.info.name} {engine.info.version} is not updated by {name} here",
            f"there is {join_names(engine.transports)}",
        )
    if not transport.is_between_gpus:
        return
    default = f"--transport {transports_of(engine.info.name)[0].name}"
    if not isinstance(trainer, GpuTrainer):
        raise CkptcheckError(
            f"{name} carries weights as the trainer holds them, and they are packed on their way", default
        )
    if trainer_facts.get("device") != "cuda":
        raise CkptcheckError(
            f"{name} carries weights between GPUs, and {trainer.info.name} computes on the CPU",
            f"--device cuda, or {default}",
        )
    if transport.sender == "group":
        _check_nccl(trainer, engine, default)
    trainer_gpus, visible = (trainer_facts.get(fact, "").split(",") for fact in ("gpus", "sees"))
    engine_gpus = engine_facts.get("gpus", "").split(",")
    if transport.sender == "group" and trainer_gpus[0] in engine_gpus:
        raise CkptcheckError(
            f"NCCL refuses two ranks on one GPU, and {trainer.info.name} and {engine.info.name} share {trainer_gpus[0]}",
            f"--transport {_on_shared_gpu(engine.info.name).name}, or another GPU by --engine-gpus",
        )
    if transport.sender == "ipc" and (hidden := [gpu for gpu in engine_gpus if gpu not in visible]):
        group = next(
            (row for row in transports_of(engine.info.name) if row.is_between_gpus and row.sender == "group"), None
        )
        alternative = f"--transport {group.name}, or {default}" if group else default
        raise CkptcheckError(
            f"CUDA IPC opens the memory of one GPU, and {trainer.info.name} does not see {hidden[0]}, where {engine.info.name} is",
            f"let both see it (--trainer-gpus, --engine-gpus), {alternative}",
        )


def _check_nccl(trainer: Trainer, engine: Updatable, default: str) -> None:
    """Raise CkptcheckError where an NCCL group of trainer and engine would hang instead of failing.

    Both ends need one version of NCCL. vLLM pins NCCL's algorithm, protocol and channels where it is batch-invariant
    (vllm/model_executor/layers/batch_invariant.py of 0.32), and a group needs the same on every rank.
    """
    versions = [side.info.facts.get("nccl", "") for side in (trainer, engine)]
    if all(versions) and versions[0] != versions[1]:
        raise CkptcheckError(
            f"{trainer.info.name} has NCCL {versions[0]} and {engine.info.name} has NCCL {versions[1]}: a group of two versions"
            " can hang",
            f"install the same torch on both sides, or {default}",
        )
    if engine.info.facts.get("batch_invariant") == "True":
        raise CkptcheckError(
            f"{engine.info.name} is batch-invariant and pins how NCCL computes, which {trainer.info.name} does not: their group"
            " would hang",
            f"unset VLLM_BATCH_INVARIANT, or {default}",
        )


def _on_shared_gpu(engine: str) -> Transport:
    """Return the transport between GPUs that works on one GPU, the default transport where there is none."""
    rows = transports_of(engine)
    return next((row for row in rows if row.is_between_gpus and row.sender == "ipc"), rows[0])
