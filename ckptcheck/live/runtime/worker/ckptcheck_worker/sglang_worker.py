"""What ckptcheck adds to every scheduler of SGLang: it reads and changes the models where they live.

`register` runs as a plugin in each of SGLang's processes (see sglang_plugins.py) and adds one method to the scheduler, which
`sglang.Engine.collective_rpc` calls on every rank. The call is outside a session of begin_weight_update and end_weight_update,
so it reads the tensors that the engine computes with, not the layout that they have during a load.

`look` does the same as a ``--custom-weight-loader``: the way into a server that runs without the plugin. It runs inside a
session, where layers that are repacked after loading (experts in INT4 on a GPU) have the layout in which they are loaded.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from . import (
    arrivals,
    capture,
    expert_slots,
    hf_hooks,
    host_scalars,
    inventory,
    ipc,
    quick_imports,
    sglang_lora,
    tensors,
)

REBUILT = ("w_kc", "w_vc")
"""Derived tensors that SGLang rebuilds after every update: the absorbed projections of multi-head latent attention."""
_scrambled: dict[str, str] = {}
_recorders: list[tuple[Any, list[list[list[int]]]]] = []
_capturing: dict[str, Any] = {}


@dataclass(frozen=True)
class RankView:
    """What a method can see of one rank."""

    rank: int
    model: Any
    """The model that is served."""
    models: Sequence[tuple[str, Any]]
    """(prefix of its names, model): the served model and, without a custom weight loader, a draft model."""
    scheduler: Any = None
    """SGLang's scheduler; None in a custom weight loader."""
    groups: Any = None
    """The process groups of weight updates, by name; None in a custom weight loader."""

    def tensors(self) -> Iterator[tuple[str, str, Any, str]]:
        """Walk the tensors of all models."""
        for prefix, model in self.models:
            yield from tensors.walk(model, prefix)

    @property
    def device(self) -> Any:
        """The device of the model."""
        return next(self.model.parameters()).device


def register() -> None:
    """Add the method `ckptcheck` to SGLang's scheduler. A plugin of every process of SGLang."""
    from sglang.srt.managers.scheduler import Scheduler

    from . import vector_math  # noqa: F401

    quick_imports.end_quick_imports()
    Scheduler.ckptcheck = _answer_scheduler


def look(model: Any, named_tensors: list[tuple[str, Any]]) -> None:
    """Answer a request that arrives as the bytes of one "tensor": JSON, ``{"method", "arguments", "path"}``."""
    request = json.loads(bytes(dict(named_tensors)["request"].tolist()))
    _answer(RankView(_tp_rank(), model, [("", model)]), **request)


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
        result: dict[str, Any] = {"result": METHODS[method](view, *arguments)}
    except Exception as error:  # a raised exception would look like an error of SGLang
        result = {"error": f"{type(error).__name__}: {error}"}
    with open(f"{path}.{view.rank}.part", "w", encoding="utf-8") as file:
        json.dump(result, file)
    os.replace(f"{path}.{view.rank}.part", f"{path}.{view.rank}")


def _digest_tensors(view: RankView, with_digests: bool = True) -> dict[str, Any]:
    return inventory.digest_tensors(view.rank, view.tensors(), with_digests)


def _sum_parts(view: RankView, parts_by_rank: list[list[Any]]) -> list[list[int]]:
    return inventory.sum_parts(view.tensors(), parts_by_rank[view.rank])


def _read_scalars(view: RankView) -> dict[str, Any]:
    numbers = (entry for prefix, model in view.models for entry in host_scalars.walk(model, prefix))
    return host_scalars.read_scalars(view.rank, numbers)


def _digest_adapter(view: RankView, name: str) -> dict[str, Any]:
    manager = view.scheduler.tp_worker.model_runner.lora_manager
    return inventory.digest_tensors(view.rank, sglang_lora.slot_tensors(manager, name))


def _scramble_weights(view: RankView, keep_draft: bool = False) -> dict[str, Any]:
    report, scrambled = inventory.scramble_weights(view.rank, view.tensors(), REBUILT, keep_draft)
    _scrambled.clear()
    _scrambled.update(scrambled)
    return report


def _find_unwritten(view: RankView) -> dict[str, Any]:
    return inventory.find_unwritten(view.rank, view.tensors(), _scrambled)


def _digest_expert_slots(view: RankView) -> dict[str, Any]:
    return expert_slots.digest_slots(view.rank, expert_slots.sglang_layers(view.model), view.tensors())


def _rebalance_experts(view: RankView) -> None:
    """Move every expert to another slot, on all ranks together."""
    expert_slots.rotate_sglang(_model_runners(view.scheduler)[0][1], view.model)


def _record_arrivals(view: RankView, expected: list[str], is_brief: bool) -> None:
    """Note from now on what reaches the model's load_weights (see `arrivals`)."""
    arrivals.record(view.model, expected, is_brief)


def _read_arrivals(view: RankView) -> dict[str, Any]:
    """Return what has reached it on this rank, and note nothing any more."""
    return arrivals.read(view.rank)


def _fetch_tensors(view: RankView, names_by_rank: list[list[str]], path: str) -> dict[str, Any]:
    return inventory.fetch_tensors(view.rank, view.tensors(), names_by_rank, path)


def _memory_bytes(view: RankView) -> list[int]:
    return inventory.memory_bytes(view.device)


def _gpu_uuid(view: RankView) -> str:
    return ipc.gpu_uuid(view.device.index or 0) if view.device.type == "cuda" else ""


def _seed_sampler(view: RankView, number: int) -> None:
    """Seed the sampler for the next request: SGLang applies the seeds of requests on GPUs only."""
    import torch

    torch.manual_seed(number)


def _set_logprobs_mode(view: RankView, mode: str) -> str:
    """Make SGLang return logprobs before (raw) or after the temperature; return its own default.

    SGLang reads the environment variable of this setting only at import.
    """
    from sglang.srt.layers import sampler
    from sglang.srt.utils import get_bool_env_var

    sampler.SGLANG_RETURN_ORIGINAL_LOGPROB = mode == "raw"
    return "raw" if get_bool_env_var("SGLANG_RETURN_ORIGINAL_LOGPROB") else "processed"


def _wait_in_group(view: RankView, name: str) -> None:
    """Wait for the sender at a barrier of the process group."""
    view.groups[name].barrier().wait()


def _is_idle(view: RankView) -> bool:
    scheduler = view.scheduler
    return bool(scheduler.is_fully_idle()) if hasattr(scheduler, "is_fully_idle") else True


def _start_capture(view: RankView, tokens: int) -> None:
    """Capture the activations of the next forward, of a prompt of so many tokens."""
    stack = contextlib.ExitStack()
    hooks = [*hf_hooks.model_hooks(view.model)]
    _capturing.update(stack=stack, capture=stack.enter_context(capture.capture_modules(hooks, tokens)))


def _finish_capture(view: RankView, path: str) -> dict[str, Any]:
    """Remove the hooks and write the captured activations to a file."""
    _capturing.pop("stack").close()
    return capture.write_capture(_capturing.pop("capture"), f"{path}.{view.rank}")


def _record_experts(view: RankView, on: bool) -> list[list[list[list[int]]]]:
    """Begin to record the experts of every token, or end and return them as [layer][forward][token][choice]."""
    if on:
        for module in view.model.modules():
            if type(module).__name__ == "TopK":
                forwards: list[list[list[int]]] = []
                hook = module.register_forward_hook(
                    lambda _, __, output, forwards=forwards: forwards.append(output.topk_ids.tolist())
                )
                _recorders.append((hook, forwards))
        return []
    recorded = [forwards for _, forwards in _recorders]
    for hook, _ in _recorders:
        hook.remove()
    _recorders.clear()
    return recorded


def _used_memory(view: RankView) -> list[Any]:
    return inventory.used_memory(view.device)


METHODS: dict[str, Callable[..., Any]] = {
    "digest_tensors": _digest_tensors,
    "sum_parts": _sum_parts,
    "read_scalars": _read_scalars,
    "digest_adapter": _digest_adapter,
    "scramble_weights": _scramble_weights,
    "find_unwritten": _find_unwritten,
    "digest_expert_slots": _digest_expert_slots,
    "rebalance_experts": _rebalance_experts,
    "record_arrivals": _record_arrivals,
    "read_arrivals": _read_arrivals,
    "fetch_tensors": _fetch_tensors,
    "memory_bytes": _memory_bytes,
    "used_memory": _used_memory,
    "gpu_uuid": _gpu_uuid,
    "seed_sampler": _seed_sampler,
    "set_logprobs_mode": _set_logprobs_mode,
    "wait_in_group": _wait_in_group,
    "is_idle": _is_idle,
    "start_capture": _start_capture,
    "finish_capture": _finish_capture,
    "record_experts": _record_experts,
}
"""Method → function of a rank: (view, *arguments) → JSON."""
