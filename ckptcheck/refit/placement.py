"""Can these weights reach this engine by that transport? Asked before anything is sent."""

from __future__ import annotations

from ckptcheck.engines.base import Engine
from ckptcheck.errors import CkptcheckError
from ckptcheck.trainers.base import Lender, Trainer

ON_GPU = ("nccl", "ipc")
"""Transports between GPUs."""
ELSE = {"vllm": "--transport reload", "sglang": "--transport tensor"}
"""What always works."""
OFFERED = ("reload", "ipc", "nccl", "load_weights")
"""By vLLM on GPUs, which has the one for which it was started."""
SHARED = {"vllm": "--transport ipc", "sglang": "--transport tensor"}
"""What works on one GPU, and over it."""


def check(trainer: Trainer, engine: Engine, transport: str) -> None:
    """Raise CkptcheckError, one sentence and what to do, where a transport cannot work between these two."""
    if engine.info.name not in ELSE:
        return
    here, there = trainer.info.facts, engine.info.facts
    device = there.get("device", "").upper()
    if transport not in engine.transports:
        known = ", ".join(OFFERED if (engine.info.name, device) == ("vllm", "CUDA") else engine.transports)
        raise CkptcheckError(
            f"{engine.info.name} {engine.info.version} on {device} is not updated by {transport}", f"there is {known}"
        )
    if transport not in ON_GPU:
        return
    other = ELSE[engine.info.name]
    if not isinstance(trainer, Lender):
        raise CkptcheckError(
            f"{transport} carries weights as the trainer holds them, and they are packed on their way", other
        )
    if here.get("device") != "cuda":
        raise CkptcheckError(
            f"{transport} carries weights between GPUs, and {trainer.info.name} computes on the CPU",
            f"--device cuda, or {other}",
        )
    gpus, sees = (here.get(name, "").split(",") for name in ("gpus", "sees"))
    used = there.get("gpus", "").split(",")
    if transport == "nccl" and gpus[0] in used:
        raise CkptcheckError(
            f"NCCL refuses two ranks on one GPU, and {trainer.info.name} and {engine.info.name} share {gpus[0]}",
            f"{SHARED[engine.info.name]}, or another GPU by --engine-gpus",
        )
    if transport == "ipc" and (hidden := [gpu for gpu in used if gpu not in sees]):
        raise CkptcheckError(
            f"CUDA IPC opens the memory of one GPU, and {trainer.info.name} does not see {hidden[0]}, where {engine.info.name} is",
            f"let both see it (--trainer-gpus, --engine-gpus), --transport nccl, or {other}",
        )
