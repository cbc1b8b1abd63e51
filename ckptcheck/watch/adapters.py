"""The few lines that put a watch into slime, verl and NeMo-RL. Each replaces one function by one that calls it.

Written against slime 04b6c8d (UpdateWeightFromTensor, UpdateWeightFromDistributed), verl 11eb3d0 (BaseRollout.update_weights,
CheckpointEngine.send_weights) and NeMo-RL 00ab4ef (stream_weights_via_ipc_zmq_impl, packed_broadcast_producer). None of the
three is imported here. All of these are public but slime's `_hf_weight_iterator` and `_expert_transfer_plan`; where a version
has other ones, the engine's side is still seen.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Any, TypeVar

from ckptcheck.watch.watch import Syncing, Watch

T = TypeVar("T")


def slime(updater: T, watch: Watch) -> T:
    """Watch slime's weight updater (``actor.weight_updater``); call it on every rank, with a watch that is enabled on rank 0.

    Its `weight_version` is the step. What UpdateWeightFromTensor sends passes through its weight iterator and is digested
    there; UpdateWeightFromDistributed has none, so of that only the engine's side is seen. So it is where each rank sends
    experts of its own (`_expert_transfer_plan`, of colocated engines with expert parallelism): they do not pass there.
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
            if getattr(held, "_expert_transfer_plan", None):
                sync.unseen("slime sends experts from rank to rank (_expert_transfer_plan), past its weight iterator")
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

    ``global_steps`` is the step; where it is not given, syncs are counted. Weights may come as a generator or as an
    asynchronous one, and the method may be a coroutine or not: both stay as they are. Deltas (``delta_flush``) are passed on
    and not looked at.
    """
    held: Any = side
    name = "update_weights" if hasattr(held, "update_weights") else "send_weights"
    send: Callable[..., Any] = getattr(held, name)
    counted = _counter()

    @wraps(send)
    def watched(*arguments: Any, **named: Any) -> Any:
        number, step = counted(), named.get("global_steps")
        sync = watch(step=number if step is None else step)
        sync.before()
        try:
            arguments, named = _through(sync, arguments, named, ("weights",))
            answer = send(*arguments, **named)
        except BaseException as error:
            sync.after(error)
            raise
        if inspect.isawaitable(answer):
            return _awaited(sync, answer)
        sync.after()
        return answer

    @wraps(send)
    async def awaited(*arguments: Any, **named: Any) -> Any:
        return await watched(*arguments, **named)

    setattr(held, name, awaited if inspect.iscoroutinefunction(send) else watched)
    return side


def nemo_rl(send: Callable[..., T], watch: Watch) -> Callable[..., T]:
    """Watch one of the two functions through which NeMo-RL's policy workers send all weights to vLLM; return what replaces it.

    send: `stream_weights_via_ipc_zmq_impl` (colocated) or `packed_broadcast_producer` (else). No step passes there, so syncs
    are counted. The engine's side cannot be seen: its HTTP server has no checksums.
    """
    counted = _counter()

    @wraps(send)
    def watched(*arguments: Any, **named: Any) -> T:
        with watch(step=counted()) as sync:
            arguments, named = _through(sync, arguments, named, ("params_generator", "iterator"))
            return send(*arguments, **named)

    return watched


def _counter() -> Callable[[], int]:
    """Count syncs in place of steps. The first two are of the same step: a job that resumes syncs twice before it trains."""
    numbers = itertools.count(-1)
    return lambda: max(0, next(numbers))


def _through(
    sync: Syncing, arguments: tuple[Any, ...], named: dict[str, Any], names: tuple[str, ...]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Have the weights of a call pass through a sync: they are its argument of one of these names, or its first."""
    for name in names:
        if name in named:
            return arguments, named | {name: sync.sent(named[name])}
    return ((sync.sent(arguments[0]), *arguments[1:]) if arguments else arguments), named


async def _awaited(sync: Syncing, answer: Awaitable[Any]) -> Any:
    try:
        done = await answer
    except BaseException as error:
        sync.after(error)
        raise
    sync.after()
    return done
