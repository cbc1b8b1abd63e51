"""Watches the weights that a trainer of TRL sends to vLLM."""

from __future__ import annotations

from functools import wraps
from typing import Any, TypeVar

from ckptcheck.watch.interface import Interface
from ckptcheck.watch.passing import count_steps, replaced
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
    walk = getattr(generation, "_iter_named_params", None)
    push = getattr(generation, "_push_param_to_vllm", None)

    @wraps(synchronize)
    def watched(*arguments: Any, **keywords: Any) -> Any:
        number, step = next_step(), getattr(getattr(owner, "state", None), "global_step", None)
        with watch(step=number if step is None else int(step)) as sync:
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
    return trainer


def _learns_shapes(generation: Any) -> bool:
    """Return whether TRL walks the parameters only for their names and shapes, which it does once for a server."""
    return generation.mode == "server" and getattr(generation, "_weight_metadata", ()) is None
