"""Watches a job of TRL by one argument of its trainer: ``GRPOTrainer(..., callbacks=[WatchCallback(record="syncs.jsonl")])``."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping
from typing import Any

from ckptcheck.errors import CkptcheckError
from ckptcheck.framework_folders import load_framework_file
from ckptcheck.watch import adapters
from ckptcheck.watch.engine_side import WatchedEngine, module, servers
from ckptcheck.watch.watch import Watch
from ckptcheck.watch.watch_state import SyncWarning

MOST_FRAMES = 12
"""Frames from the callback up to its trainer. transformers 5 has two between them."""


class WatchCallback:
    """A callback of transformers' trainers that watches the weights which a trainer of TRL sends to vLLM.

    It puts the watch in when training begins, on every rank, and enables it on the main process. The engine is the one in this
    process (``vllm_mode="colocate"``) or the servers of the trainer's client; name another with `engine`.
    Whatever goes wrong here is a warning: the job goes on.

    Args:
        engine: the engine to question, None to find it.
        options: further arguments of `Watch`: record, every, on, metrics, …. ``probe=10`` has both sides score fixed sequences,
            and the engine draw some tokens as the job does, after every tenth sync.

    """

    def __init__(self, engine: WatchedEngine | None = None, **options: Any) -> None:
        self.engine, self.options = engine, options
        self.watch: Watch | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **keywords: Any) -> None:
        """Put the watch into the trainer that calls this. Training may begin again: then the watch is there already."""
        if self.watch is not None:
            return
        try:
            self._put_in()
        except Exception as error:
            warnings.warn(
                f"ckptcheck.watch cannot watch this trainer: {type(error).__name__}: {error}", SyncWarning, stacklevel=2
            )

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **keywords: Any) -> None:
        """Give the watch what TRL logs, with the gap that it measures. It counts a step before it logs it."""
        if self.watch is not None and isinstance(logs, Mapping):
            step = getattr(state, "global_step", None)
            watch, metrics = self.watch, logs
            watch.attempt(
                "read what is logged", lambda: watch.logged(metrics, None if step is None else max(0, step - 1))
            )

    def on_train_end(self, args: Any, state: Any, control: Any, **keywords: Any) -> None:
        """Wait until all syncs are recorded, and say how the job went."""
        if self.watch is not None:
            self.watch.close()

    def _put_in(self) -> None:
        trainer = _find_trainer(self)
        if trainer is None or getattr(trainer, "vllm_generation", None) is None:
            warnings.warn(
                "ckptcheck.watch sees no syncs: this trainer has no vllm_generation (use_vllm, TRL 0.28 or later)",
                SyncWarning,
                stacklevel=3,
            )
            return
        enabled = bool(self.options.pop("enabled", True)) and bool(trainer.accelerator.is_main_process)
        engine = self.engine or find_engine(trainer.vllm_generation) if enabled else None
        options = {"trainer": "trl", **self.options}
        if isinstance(options.get("probe"), int) and not isinstance(options["probe"], bool):
            options["probe"] = _build_probe(trainer, options["probe"]) if enabled else None
        self.watch = Watch(engine, **options, enabled=enabled)
        adapters.trl(trainer, self.watch)

    def __getattr__(self, name: str) -> Callable[..., None]:
        """Return an event that does nothing, for every other event of transformers."""
        if name.startswith("on_"):
            return _ignore_event
        raise AttributeError(name)


def _build_probe(trainer: Any, every: int) -> Any:
    """Return the probe of a trainer, None where there can be none: the watch does without."""
    try:
        return load_framework_file("trl", "watch").build_probe(trainer, every)
    except Exception as error:
        message = error.message if isinstance(error, CkptcheckError) else f"no probe: {type(error).__name__}: {error}"
        warnings.warn(f"ckptcheck.watch: {message}", SyncWarning, stacklevel=2)
        return None


def find_engine(generation: Any) -> WatchedEngine | None:
    """Return the engine of TRL's `VLLMGeneration`, None where it cannot be reached.

    Colocated: vLLM's model in this process, where its core runs here too (VLLM_ENABLE_V1_MULTIPROCESSING=0, as TRL sets it).
    """
    if getattr(generation, "mode", "") == "server":
        url = getattr(getattr(generation, "vllm_client", None), "base_url", None)
        return None if url is None else servers(url, allow_remote=True)
    found = getattr(generation, "llm", None)
    for name in ("llm_engine", "model_executor", "driver_worker", "model_runner", "model"):
        found = getattr(found, name, None)
    return None if found is None else module(found, "vllm")


def _find_trainer(callback: WatchCallback) -> Any:
    """Return the trainer whose frame calls this callback: an event does not name its trainer."""
    frame = sys._getframe(1)
    for _ in range(MOST_FRAMES):
        if frame.f_back is None:
            return None
        frame = frame.f_back
        owner = frame.f_locals.get("self")
        if callback in getattr(getattr(owner, "callback_handler", None), "callbacks", ()):
            return owner
    return None


def _ignore_event(*arguments: Any, **keywords: Any) -> None:
    """Do nothing."""
