"""Watches slime's weight updater."""

from __future__ import annotations

import sys
from functools import wraps
from typing import Any, TypeVar

from ckptcheck.watch.interface import Interface
from ckptcheck.watch.passing import count_steps, replaced
from ckptcheck.watch.watch import Watch

T = TypeVar("T")
INTERFACE = Interface("slime", "2026-08-21", "624b824a8", {"update_weights": ()})


def slime(updater: T, watch: Watch) -> T:
    """Watch slime's weight updater (``actor.weight_updater``); call it on every rank, with a watch that is enabled on
    rank 0.

    Its `weight_version` is the step. UpdateWeightFromTensor sends its weights through a weight iterator, where the watch
    digests them. UpdateWeightFromDistributed shows each bucket to its hook `_on_chunk` before it is broadcast; with
    pipeline
    parallelism every stage sends its own part, and the watch says that it sees the first one's only. Of UpdateWeightFromDiskDelta
    the watch digests every gathered tensor, and what is published of it as a payload; its first call publishes nothing, and is no
    sync. An updater that has none of these is
    seen from the engine's side only. The same holds if each rank sends its own experts (`_expert_transfer_plan`, for
    colocated engines with expert parallelism): those bypass the
    iterator.
    """
    weight_updater: Any = updater
    if not INTERFACE.check(weight_updater):
        return updater
    update, next_step = weight_updater.update_weights, count_steps()
    iterator: Any = getattr(weight_updater, "_hf_weight_iterator", None)
    chunks = getattr(iterator, "get_hf_weight_chunks", None)
    hook = getattr(weight_updater, "_on_chunk", None)
    gathered = getattr(weight_updater, "_iter_hf_tensors", None)

    @wraps(update)
    def watched(*arguments: Any, **keywords: Any) -> Any:
        if gathered is not None and not getattr(weight_updater, "_baseline_captured", True):
            return update(*arguments, **keywords)
        number, version = next_step(), getattr(weight_updater, "weight_version", None)
        step = version + 1 if isinstance(version, int) else None
        with watch(step=number if step is None else step, version=None if step is None else str(step)) as sync:
            stages = _count_stages() if chunks is None else 1
            if stages > 1:
                sync.partly(f"slime sends each of {stages} pipeline stages from a rank of its own")
            if chunks is None and gathered is not None:
                with replaced(weight_updater, _iter_hf_tensors=lambda: sync.sent(gathered())):
                    result = update(*arguments, **keywords)
                if delta := getattr(weight_updater, "_delta", None):
                    sync.sent([delta])
                return result
            if chunks is None and callable(hook):

                def show(hf_chunk: Any) -> Any:
                    sync.sent(hf_chunk)
                    return hook(hf_chunk)

                with replaced(weight_updater, _on_chunk=show):
                    return update(*arguments, **keywords)
            if chunks is None:
                return update(*arguments, **keywords)
            if getattr(weight_updater, "_expert_transfer_plan", None):
                sync.unseen("slime sends experts from rank to rank (_expert_transfer_plan), past its weight iterator")
                return update(*arguments, **keywords)
            with replaced(iterator, get_hf_weight_chunks=lambda *args, **kwargs: sync.chunks(chunks(*args, **kwargs))):
                return update(*arguments, **keywords)

    weight_updater.update_weights = watched
    return updater


def _count_stages() -> int:
    """Return the number of Megatron's pipeline stages; 1 without pipeline parallelism."""
    parallel_state: Any = sys.modules.get("megatron.core.parallel_state")
    if parallel_state is None or not parallel_state.model_parallel_is_initialized():
        return 1
    return int(parallel_state.get_pipeline_model_parallel_world_size())
