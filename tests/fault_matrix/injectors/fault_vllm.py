"""The vLLM worker with a door for faults: those of its ranks (dispatch.py), and those of the engine around them."""

from __future__ import annotations

from typing import Any

import undo
from ckptcheck_worker import vllm_engine, vllm_launch

vllm_launch.WORKER_EXTENSION = "fault_vllm_extension.FaultExtension"


def inject_around(name: str) -> None:
    """Put a fault into the engine around its ranks."""
    llm = vllm_engine._llm()
    if name == "keep_cache":
        undo.replace(llm, "reset_prefix_cache", lambda *_, **__: True)
    elif name == "keep_version":
        undo.replace(llm, "finish_weight_update", _without_version(llm.finish_weight_update))
    else:
        raise ValueError(name)


def _without_version(finish: Any) -> Any:
    import inspect

    def finish_quietly(*_: Any, weight_version: Any = None, **__: Any) -> Any:
        return finish()

    finish_quietly.__signature__ = inspect.signature(finish)  # type: ignore[attr-defined]
    return finish_quietly


def heal_around() -> None:
    """Take those out."""
    undo.undo_all()


RPC_METHODS = {**vllm_engine.RPC_METHODS, "inject_around": inject_around, "heal_around": heal_around}
