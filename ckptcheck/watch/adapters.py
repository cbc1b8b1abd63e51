"""Puts a watch into slime, verl, NeMo-RL and TRL. Each adapter wraps one function of the framework.

Written against slime 04b6c8d (UpdateWeightFromTensor, UpdateWeightFromDistributed), verl 11eb3d0 (BaseRollout.update_weights,
CheckpointEngine.send_weights) and NeMo-RL 00ab4ef (stream_weights_via_ipc_zmq_impl, packed_broadcast_producer). This
module imports none of the three. All of these names are public except slime's `_hf_weight_iterator` and
`_expert_transfer_plan`; with a version of slime that has others, the watch still sees the engine's side.
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

    Its `weight_version` is the step. UpdateWeightFromTensor sends its weights through a weight iterator, where the watch
    digests them. UpdateWeightFromDistributed has no iterator, so the watch sees only the engine's side. The same holds if each
    rank sends its own experts (`_expert_transfer_plan`, for colocated engines with expert parallelism): those bypass the
    iterator.
    """
    weight_updater: Any = updater
    update = weight_updater.update_weights
    iterator: Any = getattr(weight_updater, "_hf_weight_iterator", None)
    chunks = getattr(iterator, "get_hf_weight_chunks", None)

    @wraps(update)
    def watched(*arguments: Any, **keywords: Any) -> Any:
        with watch(step=int(weight_updater.weight_version) + 1, version=str(weight_updater.weight_version + 1)) as sync:
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


def verl(side: T, watch: Watch) -> T:
    """Watch verl's rollout (`update_weights`) or its checkpoint engine (`send_weights`): whichever this side has.

    ``global_steps`` is the step; without it, the watch counts syncs. The weights may be a generator or an asynchronous
    generator, and the method may be a coroutine or not: both stay as they are. The watch passes deltas (``delta_flush``) on
    and does not digest them.
    """
    component: Any = side
    name = "update_weights" if hasattr(component, "update_weights") else "send_weights"
    send: Callable[..., Any] = getattr(component, name)
    next_step = _counter()

    @wraps(send)
    def watched(*arguments: Any, **keywords: Any) -> Any:
        number, step = next_step(), keywords.get("global_steps")
        sync = watch(step=number if step is None else step)
        sync.before()
        try:
            arguments, keywords = _watch_weights(sync, arguments, keywords, ("weights",))
            result = send(*arguments, **keywords)
        except BaseException as error:
            sync.after(error)
            raise
        if inspect.isawaitable(result):
            return _await_result(sync, result)
        sync.after()
        return result

    @wraps(send)
    async def awaited(*arguments: Any, **keywords: Any) -> Any:
        return await watched(*arguments, **keywords)

    setattr(component, name, awaited if inspect.iscoroutinefunction(send) else watched)
    return side


def nemo_rl(send: Callable[..., T], watch: Watch) -> Callable[..., T]:
    """Wrap one of the two functions by which NeMo-RL's policy workers send all weights to vLLM; return the wrapper.

    send: `stream_weights_via_ipc_zmq_impl` (colocated) or `packed_broadcast_producer` (otherwise). It gets no step, so the
    watch counts syncs. The watch cannot see the engine's side, because its HTTP server has no checksums.
    """
    next_step = _counter()

    @wraps(send)
    def watched(*arguments: Any, **keywords: Any) -> T:
        with watch(step=next_step()) as sync:
            arguments, keywords = _watch_weights(sync, arguments, keywords, ("params_generator", "iterator"))
            return send(*arguments, **keywords)

    return watched


def trl(trainer: T, watch: Watch) -> T:
    """Watch the weights that a trainer of TRL (GRPO, RLOO) sends to vLLM: ``VLLMGeneration.sync_weights``.

    Call it on every rank, with a watch that is enabled on rank 0. The step is the trainer's global step. Before 1.11 TRL pushes
    parameter by parameter; since then it walks them, and at the first sync with a server once more before, to learn their shapes.
    """
    owner: Any = trainer
    generation: Any = owner.vllm_generation
    synchronize = generation.sync_weights
    walk = getattr(generation, "_iter_named_params", None)
    push = getattr(generation, "_push_param_to_vllm", None)

    @wraps(synchronize)
    def watched(*arguments: Any, **keywords: Any) -> Any:
        with watch(step=int(owner.state.global_step)) as sync:
            if walk is not None:
                generation._iter_named_params = lambda: walk() if _learns_shapes(generation) else sync.sent(walk())
            elif push is not None:
                generation._push_param_to_vllm = lambda name, param: (sync.sent([(name, param)]), push(name, param))
            else:
                sync.unseen("this version of TRL has neither _iter_named_params nor _push_param_to_vllm")
            try:
                return synchronize(*arguments, **keywords)
            finally:
                if walk is not None:
                    generation._iter_named_params = walk
                elif push is not None:
                    generation._push_param_to_vllm = push

    generation.sync_weights = watched
    return trainer


def _learns_shapes(generation: Any) -> bool:
    """Return whether TRL walks the parameters only for their names and shapes, which it does once for a server."""
    return generation.mode == "server" and getattr(generation, "_weight_metadata", ()) is None


def _counter() -> Callable[[], int]:
    """Return a function that counts syncs as steps. The first two count as one step: a job that resumes syncs twice at first."""
    numbers = itertools.count(-1)
    return lambda: max(0, next(numbers))


def _watch_weights(
    sync: Syncing, arguments: tuple[Any, ...], keywords: dict[str, Any], names: tuple[str, ...]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments of a call with the weights passed through `sync.sent`.

    names: the keywords by which the weights may come; otherwise they are the first positional argument.
    """
    for name in names:
        if name in keywords:
            return arguments, keywords | {name: sync.sent(keywords[name])}
    return ((sync.sent(arguments[0]), *arguments[1:]) if arguments else arguments), keywords


async def _await_result(sync: Syncing, awaitable: Awaitable[Any]) -> Any:
    """Await the result of a call, then end the watch of its sync."""
    try:
        result = await awaitable
    except BaseException as error:
        sync.after(error)
        raise
    sync.after()
    return result
