"""Watches slime's weight updater."""

from __future__ import annotations

from functools import wraps
from typing import Any, TypeVar

from ckptcheck.watch.adapters.interface import Interface
from ckptcheck.watch.adapters.passing import count_steps
from ckptcheck.watch.watch import Watch

T = TypeVar("T")
INTERFACE = Interface("slime", "2026-08-21", "624b824a8", {"update_weights": ()})


def slime(updater: T, watch: Watch) -> T:
    """Watch slime's weight updater (``actor.weight_updater``); call it on every rank, with a watch that is enabled on rank 0.

    Its `weight_version` is the step. UpdateWeightFromTensor sends its weights through a weight iterator, where the watch
    digests them. UpdateWeightFromDistributed has no iterator, so the watch sees only the engine's side. The same holds if each
    rank sends its own experts (`_expert_transfer_plan`, for colocated engines with expert parallelism): those bypass the
    iterator.
    """
    weight_updater: Any = updater
    if not INTERFACE.check(weight_updater):
        return updater
    update, next_step = weight_updater.update_weights, count_steps()
    iterator: Any = getattr(weight_updater, "_hf_weight_iterator", None)
    chunks = getattr(iterator, "get_hf_weight_chunks", None)

    @wraps(update)
    def watched(*arguments: Any, **keywords: Any) -> Any:
        number, version = next_step(), getattr(weight_updater, "weight_version", None)
        step = version + 1 if isinstance(version, int) else None
        with watch(step=number if step is None else step, version=None if step is None else str(step)) as sync:
            if chunks is None:
                return update(*arguments, **keywords)
            if getattr(weight_updater, "_expert_transfer_plan", None):
                sync.unseen("slime sends experts from rank to rank (_expert_transfer_plan), past its weight iterator")
                return update(*arguments, **keywords)
            iterator.get_hf_weight_chunks = lambda *args, **kwargs: sync.chunks(chunks(*args, **kwargs))
            try:
                return update(*arguments, **keywords)
            finally:
                iterator.get_hf_weight_chunks = chunks

    weight_updater.update_weights = watched
    return updater
