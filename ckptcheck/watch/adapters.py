"""The few lines that put a watch into slime, verl and NeMo-RL. Each replaces one public method by one that calls it.

Written against slime 04b6c8d (UpdateWeightFromTensor, UpdateWeightFromDistributed), verl 11eb3d0 (BaseRollout.update_weights,
CheckpointEngine.send_weights) and NeMo-RL 00ab4ef (grpo.refit_policy_generation). None of the three is imported here.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Any, TypeVar

from ckptcheck.watch.watch import Watch

T = TypeVar("T")


def slime(updater: T, watch: Watch) -> T:
    """Watch slime's weight updater (``actor.weight_updater``); call it on every rank, with a watch that is enabled on rank 0.

    Its `weight_version` is the step. What UpdateWeightFromTensor sends passes through its weight iterator and is digested
    there; UpdateWeightFromDistributed has none, so of that only the engine's side is seen.
    """
    held: Any = updater
    update = held.update_weights
    iterator: Any = getattr(held, "_hf_weight_iterator", None)
    chunks = getattr(iterator, "get_hf_weight_chunks", None)

    @wraps(update)
    def watched(*arguments: Any, **named: Any) -> Any:
        with watch(step=int(held.weight_version) + 1, version=str(held.weight_version + 1)) as sync:
            if chunks is None:
                return update(*arguments, **named)
            iterator.get_hf_weight_chunks = lambda *given, **more: sync.chunks(chunks(*given, **more))
            try:
                return update(*arguments, **named)
            finally:
                iterator.get_hf_weight_chunks = chunks

    held.update_weights = watched
    return updater


def verl(side: T, watch: Watch) -> T:
    """Watch verl's rollout (`update_weights`) or its checkpoint engine (`send_weights`): whichever this side has.

    ``global_steps`` is the step, where it is given.
    """
    held: Any = side
    name = "update_weights" if hasattr(held, "update_weights") else "send_weights"
    send: Callable[..., Awaitable[Any]] = getattr(held, name)

    @wraps(send)
    async def watched(weights: Any, *arguments: Any, **named: Any) -> Any:
        with watch(step=named.get("global_steps")) as sync:
            return await send(sync.sent(weights), *arguments, **named)

    setattr(held, name, watched)
    return side


def nemo_rl(refit: Callable[..., T], watch: Watch, step: Callable[[], int | None] = lambda: None) -> Callable[..., T]:
    """Watch NeMo-RL's `refit_policy_generation`, which runs on the driver: no weight passes there, so the engine is asked.

    step: gives the trainer's step at the time of a call. A refit that raises is recorded, and raises all the same.
    """

    @wraps(refit)
    def watched(*arguments: Any, **named: Any) -> T:
        with watch(step=step()):
            return refit(*arguments, **named)

    return watched
