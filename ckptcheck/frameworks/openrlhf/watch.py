"""Watches OpenRLHF's policy trainer."""

from __future__ import annotations

from functools import wraps
from typing import Any, TypeVar

from ckptcheck.watch.interface import Interface
from ckptcheck.watch.passing import WatchedGroup, count_steps, replaced
from ckptcheck.watch.watch import Watch

T = TypeVar("T")
INTERFACE = Interface("OpenRLHF", "2026-08-13", "3c3be6234", {"broadcast_to_vllm": ()})
GROUP = "_model_update_group"


def openrlhf(trainer: T, watch: Watch) -> T:
    """Watch OpenRLHF's `ActorPPOTrainer` (`trainer` of the policy's Ray actor) on every rank, with a watch enabled on rank 0.

    It gets no step, so the watch counts syncs. Where the weights are broadcast by a group of vLLM's, the watch sees each of them,
    also with ZeRO stage 3. Through CUDA IPC (colocated) and through Ray's collectives no tensor passes an object of the trainer's:
    the watch then digests the model's own parameters after the sync, which are what was sent unless they are sharded.
    """
    owner: Any = trainer
    is_known = INTERFACE.check(owner)
    if not INTERFACE.has_methods(owner):
        return trainer
    send, next_step = owner.broadcast_to_vllm, count_steps()

    @wraps(send)
    def watched(*arguments: Any, **keywords: Any) -> Any:
        group = getattr(owner, GROUP, None)
        with watch(step=next_step()) as sync:
            if not is_known:
                sync.unseen("OpenRLHF has another interface here")
                return send(*arguments, **keywords)
            if group is not None and not getattr(owner, "use_cuda_ipc", False) and hasattr(group, "broadcast"):
                names = (name for name, _ in _list_parameters(owner))
                with replaced(owner, **{GROUP: WatchedGroup(group, sync, names)}):
                    return send(*arguments, **keywords)
            result = send(*arguments, **keywords)
            if _is_sharded(owner):
                sync.unseen("OpenRLHF gathers sharded weights and hands them on within one function")
            else:
                sync.sent([(name, parameter.data) for name, parameter in _list_parameters(owner)])
            return result

    owner.broadcast_to_vllm = watched
    return trainer


def _list_parameters(owner: Any) -> list[tuple[str, Any]]:
    """Return the parameters that a sync sends, in their order: of a model that sees images only those that are trained."""
    sends_all = not getattr(owner.actor, "is_vlm", False)
    named = owner.actor.model.module.named_parameters()
    return [(name, parameter) for name, parameter in named if parameter.requires_grad or sends_all]


def _is_sharded(owner: Any) -> bool:
    deepspeed = owner.strategy.args.ds
    return bool(deepspeed.zero_stage == 3 or getattr(deepspeed, "tensor_parallel_size", 1) > 1)
