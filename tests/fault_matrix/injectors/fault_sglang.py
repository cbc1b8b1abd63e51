"""The SGLang worker with a door for faults: those of its ranks (dispatch.py), and those of the engine around them."""

from __future__ import annotations

import functools
import os
import sys
from pathlib import Path
from typing import Any

import undo
from ckptcheck_worker import sglang_engine

FOLDER = str(Path(__file__).parent)


def register() -> None:
    """Add the door to the methods of a rank. A plugin of every process of SGLang."""
    import dispatch
    from ckptcheck_worker import sglang_worker

    def inject(view: Any, request: dict[str, Any]) -> None:
        dispatch.inject(view.model, view.rank, request)

    def heal(view: Any, forget: bool) -> None:
        dispatch.heal(forget)

    def keep_cache(view: Any) -> None:
        # both took the scheduler's method when they were made
        for owner, name in (
            (view.scheduler.weight_updater, "flush_cache"),
            (view.scheduler.flush_wrapper, "_flush_cache"),
        ):
            undo.at_end(functools.partial(setattr, owner, name, getattr(owner, name)))
            setattr(owner, name, lambda *_, **__: True)

    for method in (inject, heal, keep_cache):
        setattr(sglang_worker.RankView, f"ckptcheck_{method.__name__}", method)


def inject_around(name: str) -> None:
    """Put a fault into the engine around its ranks."""
    engine = sglang_engine._engine()
    if name == "keep_cache":
        sglang_engine.call_ranks("keep_cache", [])
    elif name == "keep_version":
        undo.replace(engine.tokenizer_manager, "_update_weight_version_if_provided", lambda *_, **__: None)
    else:
        raise ValueError(name)


def heal_around() -> None:
    """Take those out."""
    undo.undo_all()


sys.path.append(FOLDER)
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), FOLDER)))
sglang_engine.PLUGINS["faults"] = f"{Path(__file__).stem}:register"
RPC_METHODS = {**sglang_engine.RPC_METHODS, "inject_around": inject_around, "heal_around": heal_around}
