"""Watches the weights that a trainer of TRL sends to vLLM."""

from __future__ import annotations

from functools import wraps
from typing import Any, TypeVar

from ckptcheck.watch.interface import Interface
from ckptcheck.watch.passing import count_steps, replaced
from ckptcheck.watch.trainer_side import TrainerSide
from ckptcheck.watch.watch import Watch

T = TypeVar("T")
INTERFACE = Interface("TRL", "2026-07-24", "1.16.0", {"sync_weights": ()})
"""Of `VLLMGeneration`."""


def trl(trainer: T, watch: Watch) -> T:
    """Watch the weights that a trainer of TRL (GRPO, RLOO) sends to vLLM: ``VLLMGeneration.sync_weights``.

    Call it on every rank, with a watch that is enabled on rank 0. The step is the trainer's global step. Before 1.11 TRL pushes
    parameter by parameter; since then it walks them, and at the first sync with a server once more before, to learn their shapes.
    """
    owner: Any = trainer
    generation: Any = getattr(owner, "vllm_generation", None)
    if not INTERFACE.check(generation):
        return trainer
    synchronize, next_step = generation.sync_weights, count_steps()
    own, synced = _find_trainer_side(generation, watch), list[int]()
    watch.may_look_before = getattr(generation, "mode", "") == "colocate" and not getattr(
        generation, "enable_sleep_mode", True
    )
    walk = getattr(generation, "_iter_named_params", None)
    push = getattr(generation, "_push_param_to_vllm", None)

    @wraps(synchronize)
    def watched(*arguments: Any, **keywords: Any) -> Any:
        number, step = next_step(), getattr(getattr(owner, "state", None), "global_step", None)
        synced[:] = [number if step is None else int(step)]
        with watch(step=synced[0]) as sync:
            if own is not None:
                sync.trained_by(own.begin())
            shown: dict[str, Any] = {}
            if walk is not None:
                shown["_iter_named_params"] = lambda: walk() if _learns_shapes(generation) else sync.sent(walk())
            elif push is not None:
                shown["_push_param_to_vllm"] = lambda name, param: (sync.sent([(name, param)]), push(name, param))
            else:
                sync.unseen("this version of TRL has neither _iter_named_params nor _push_param_to_vllm")
            with replaced(generation, **shown):
                return synchronize(*arguments, **keywords)

    generation.sync_weights = watched
    _watch_rollouts(owner, generation, watch, synced)
    return trainer


def _find_trainer_side(generation: Any, watch: Watch) -> TrainerSide | None:
    """Return the model that TRL walks."""
    found: list[TrainerSide] = []
    if watch.enabled and hasattr(getattr(generation, "model", None), "named_parameters"):
        watch.attempt("read the trainer's parameters", lambda: found.append(TrainerSide(generation.model)))
    return found[0] if found else None


def _watch_rollouts(trainer: Any, generation: Any, watch: Watch, synced: list[int]) -> None:
    """Note rollouts that begin at another step than the last sync. synced: the step of that sync, if there was one.

    TRL syncs before the rollouts of each new step (`GRPOTrainer._generate_single_turn`), and with sleep mode within its `generate`.
    """
    often = max(1, getattr(trainer, "vllm_sync_frequency", 1))  # GOLD syncs at each n-th step
    engine: Any = getattr(generation, "llm" if getattr(generation, "mode", "") == "colocate" else "vllm_client", None)
    generate, noted = getattr(engine, "generate", None), list[int]()
    if generate is None:
        return

    @wraps(generate)
    def watched(*arguments: Any, **keywords: Any) -> Any:
        step = getattr(getattr(trainer, "state", None), "global_step", None)
        if step is not None and synced and not 0 <= int(step) - synced[0] < often and int(step) not in noted[-1:]:
            noted.append(int(step))
            watch.note_missing(int(step))
        return generate(*arguments, **keywords)

    engine.generate = watched


def _learns_shapes(generation: Any) -> bool:
    """Return whether TRL walks the parameters only for their names and shapes, which it does once for a server."""
    return generation.mode == "server" and getattr(generation, "_weight_metadata", ()) is None
