"""The addition of ckptcheck to every scheduler of SGLang: SGLang's own half of `RankHalf`.

`register` runs as a plugin in each of SGLang's processes (see sglang_plugins.py) and adds one method to the scheduler, which
`sglang.Engine.collective_rpc` calls on every rank. The call is outside a session of begin_weight_update and end_weight_update,
so it reads the tensors that the engine computes with, not the layout that they have during a load.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from . import expert_slots, quick_imports
from .rank_half import RankHalf

_notes: dict[str, Any] = {}


@dataclass(frozen=True)
class RankView(RankHalf):
    """SGLang's own half of a rank, and the objects that a call can see."""

    rank: int
    model: Any
    """The model that is served."""
    models: Sequence[tuple[str, Any]]
    """(prefix of its names, model): the served model, and a draft model."""
    scheduler: Any
    """SGLang's scheduler."""
    groups: Any
    """The process groups of weight updates, by name."""

    # the absorbed projections of multi-head latent attention
    ckptcheck_rebuilt: ClassVar[tuple[str, ...]] = ("w_kc", "w_vc")

    def ckptcheck_models(self) -> Iterator[tuple[str, Any]]:
        """Yield (prefix of its names, model) of the served model, and of a draft model."""
        return iter(self.models)

    def ckptcheck_device(self) -> Any:
        """Return the device of the model."""
        return next(self.model.parameters()).device

    def ckptcheck_notes(self) -> dict[str, Any]:
        """Return the state that one call keeps for the next on this rank: a scheduler is a process of its own."""
        return _notes

    def ckptcheck_expert_layers(self) -> Any:
        """Return the layers of experts."""
        return expert_slots.sglang_layers(self.model)

    def ckptcheck_adapter_tensors(self, adapter: str) -> Iterator[tuple[str, str, Any, str]]:
        """Yield the tensors of the adapter with this name on this rank."""
        return slot_tensors(self.scheduler.tp_worker.model_runner.lora_manager, adapter)

    def ckptcheck_rebalance_experts(self) -> None:
        """Move every expert to another slot, on all ranks together."""
        expert_slots.rotate_sglang(_model_runners(self.scheduler)[0][1], self.model)

    def ckptcheck_set_logprobs_mode(self, mode: str) -> str:
        """Make SGLang return logprobs before (raw) or after the temperature; return its own default.

        SGLang reads the environment variable of this setting only at import.
        """
        from sglang.srt.layers import sampler
        from sglang.srt.utils import get_bool_env_var

        sampler.SGLANG_RETURN_ORIGINAL_LOGPROB = mode == "raw"
        return "raw" if get_bool_env_var("SGLANG_RETURN_ORIGINAL_LOGPROB") else "processed"

    def ckptcheck_wait_in_group(self, name: str) -> None:
        """Wait for the sender at a barrier of the process group."""
        self.groups[name].barrier().wait()

    def ckptcheck_is_idle(self) -> bool:
        """Return whether the scheduler has nothing to do."""
        return bool(self.scheduler.is_fully_idle()) if hasattr(self.scheduler, "is_fully_idle") else True

    def ckptcheck_record_experts(self, begin: bool) -> list[list[list[list[int]]]]:
        """Begin to record the experts of every token, or end and return them as [layer][forward][token][choice]."""
        recorders: list[tuple[Any, list[list[list[int]]]]] = _notes.setdefault("recorders", [])
        if begin:
            for module in self.model.modules():
                if type(module).__name__ == "TopK":
                    forwards: list[list[list[int]]] = []
                    hook = module.register_forward_hook(
                        lambda _, __, output, forwards=forwards: forwards.append(output.topk_ids.tolist())
                    )
                    recorders.append((hook, forwards))
            return []
        recorded = [forwards for _, forwards in recorders]
        for hook, _ in recorders:
            hook.remove()
        recorders.clear()
        return recorded


def slot_tensors(manager: Any, name: str) -> Iterator[tuple[str, str, Any, str]]:
    """Yield the tensors of an adapter on this rank, as `tensors.walk` yields tensors; nothing if it has no slot.

    manager: SGLang's LoRAManager. Its memory pool has a buffer for each module and layer, the slot first. An adapter that was
    unloaded and loaded again has another identifier, and the last one counts.
    """
    identifiers = [key for key, reference in manager.lora_refs.items() if reference.lora_name == name]
    pool = manager.memory_pool
    if not identifiers or identifiers[-1] not in pool.uid_to_buffer_id:
        return
    slot = pool.uid_to_buffer_id[identifiers[-1]]
    for side, buffers in (("A", pool.A_buffer), ("B", pool.B_buffer)):
        for module, layers in buffers.items():
            for layer, tensor in enumerate(layers):
                yield f"layers.{layer}.{module}.lora_{side}", "derived", tensor[slot], ""
    for label in ("embedding_A_buffer", "embedding_B_buffer", "lm_head_A_buffer", "lm_head_B_buffer"):
        for module, tensor in getattr(pool, label, {}).items():
            yield f"{module}.{label}", "derived", tensor[slot], ""


def register() -> None:
    """Add the method `ckptcheck` to SGLang's scheduler. A plugin of every process of SGLang."""
    from sglang.srt.managers.scheduler import Scheduler

    from . import vector_math  # noqa: F401

    quick_imports.end_quick_imports()
    Scheduler.ckptcheck = _answer_scheduler


def _answer_scheduler(scheduler: Any, request: str) -> None:
    runners = _model_runners(scheduler)
    models = [("" if role == "target" else f"{role}:", runner.model) for role, runner in runners]
    model = runners[0][1].model
    groups = getattr(getattr(runners[0][1], "weight_updater", None), "_model_update_group", {})
    _answer(RankView(_tp_rank(), model, models, scheduler, groups), **json.loads(request))


def _tp_rank() -> int:
    from sglang.srt.runtime_context import get_parallel

    return int(get_parallel().tp_rank)


def _model_runners(scheduler: Any) -> list[tuple[str, Any]]:
    """Return (role, runner) of the models that an update reaches: the served model, and a draft model."""
    runners: list[tuple[str, Any]] = []
    for worker in (scheduler.tp_worker, scheduler.draft_worker):
        if hasattr(worker, "weight_update_runners"):
            runners += worker.weight_update_runners()
        elif worker is not None:  # 0.5.17 and before
            runners.append(("draft" if runners else "target", worker.model_runner))
    return runners


def _answer(view: RankView, method: str, arguments: list[Any], path: str) -> None:
    """Call a method and write its result to PATH.RANK, which appears complete or not at all."""
    try:
        result: dict[str, Any] = {"result": getattr(view, f"ckptcheck_{method}")(*arguments)}
    except Exception as error:  # a raised exception would look like an error of SGLang
        result = {"error": f"{type(error).__name__}: {error}"}
    with open(f"{path}.{view.rank}.part", "w", encoding="utf-8") as file:
        json.dump(result, file)
    os.replace(f"{path}.{view.rank}.part", f"{path}.{view.rank}")
