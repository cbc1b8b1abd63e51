"""What ckptcheck adds to every scheduler of SGLang: it looks at the models where they lie.

`register` runs as a plugin in each of SGLang's processes (see sglang_plugins.py) and gives the scheduler one more method,
which `sglang.Engine.collective_rpc` calls on every rank. That is outside a session of begin_weight_update and
end_weight_update, so what is seen is what the engine computes with, and not what it holds while weights are loaded.

`look` does the same as a ``--custom-weight-loader``: the way into a server that runs without the plugin. It runs inside a
session, where layers that are repacked after loading (experts in INT4 on a GPU) are as they are loaded.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator
from typing import Any

from . import capture, hf_taps, inventory, ipc, tensors

REBUILT = ("w_kc", "w_vc")
"""Derived tensors that SGLang makes anew after every update: the absorbed projections of multi-head latent attention."""
_marked: dict[str, str] = {}
_watched: list[tuple[Any, list[list[list[int]]]]] = []
_listening: dict[str, Any] = {}


def register() -> None:
    """Give SGLang's scheduler the method `ckptcheck`. Does nothing where there is none to give it to."""
    from sglang.srt.managers.scheduler import Scheduler

    Scheduler.ckptcheck = _of_scheduler


def look(model: Any, named_tensors: list[tuple[str, Any]]) -> None:
    """Answer the one "tensor" that is sent: a request as JSON in bytes, ``{"method", "arguments", "path"}``."""
    request = json.loads(bytes(dict(named_tensors)["request"].tolist()))
    device = next(model.parameters()).device
    _answer(_rank(), lambda: tensors.walk(model), device, **request)


def _of_scheduler(scheduler: Any, request: str) -> None:
    runners = _runners(scheduler)

    def held() -> Iterator[tuple[str, str, Any, str]]:
        for role, runner in runners:
            yield from tensors.walk(runner.model, "" if role == "target" else f"{role}:")

    model = runners[0][1].model
    groups = getattr(getattr(runners[0][1], "weight_updater", None), "_model_update_group", {})
    more: dict[str, Callable[..., Any]] = {
        "meet": lambda key: groups[key].barrier().wait(),
        "watch": lambda on: _watch(model, on),
        "listen": lambda prompt: _listen(model, prompt),
        "heard": lambda file: _heard(f"{file}.{_rank()}"),
        "idle": lambda: bool(scheduler.is_fully_idle()) if hasattr(scheduler, "is_fully_idle") else True,
    }
    _answer(_rank(), held, next(model.parameters()).device, **json.loads(request), more=more)


def _rank() -> int:
    from sglang.srt.runtime_context import get_parallel

    return int(get_parallel().tp_rank)


def _runners(scheduler: Any) -> list[tuple[str, Any]]:
    """Return what an update goes to: the model that is served, and a draft model."""
    found: list[tuple[str, Any]] = []
    for worker in (scheduler.tp_worker, scheduler.draft_worker):
        if hasattr(worker, "weight_update_runners"):
            found += worker.weight_update_runners()
        elif worker is not None:  # 0.5.17 and before
            found.append(("draft" if found else "target", worker.model_runner))
    return found


def _answer(
    rank: int,
    held: Callable[[], inventory.Tensors],
    device: Any,
    method: str,
    arguments: list[Any],
    path: str,
    more: dict[str, Callable[..., Any]] | None = None,
) -> None:
    """Do what is asked and write what came of it to PATH.RANK, which appears whole or not at all."""
    methods: dict[str, Callable[..., Any]] = {
        "manifest": lambda *seen: inventory.manifest(rank, held(), *seen),
        "scramble": lambda: _scramble(rank, held()),
        "leftovers": lambda: inventory.leftovers(rank, held(), _marked),
        "fetch": lambda wanted, file: inventory.fetch(rank, held(), wanted, file),
        "poke": lambda name, index, bit: inventory.poke(held(), name, index, bit),
        "memory": lambda: inventory.memory(device),
        "gpu": lambda: ipc.uuid(device.index or 0) if device.type == "cuda" else "",
        "seed": _seed,
        "settle": _settle,
        **(more or {}),
    }
    try:
        result: dict[str, Any] = {"told": methods[method](*arguments)}
    except Exception as error:  # what is raised here would pass for an error of SGLang's
        result = {"error": f"{type(error).__name__}: {error}"}
    with open(f"{path}.{rank}.part", "w", encoding="utf-8") as file:
        json.dump(result, file)
    os.replace(f"{path}.{rank}.part", f"{path}.{rank}")


def _scramble(rank: int, held: inventory.Tensors) -> dict[str, Any]:
    told, marked = inventory.scramble(rank, held, REBUILT)
    _marked.clear()
    _marked.update(marked)
    return told


def _seed(number: int) -> None:
    """Seed the sampler for the request that comes next: SGLang takes seeds of requests on GPUs only."""
    import torch

    torch.manual_seed(number)


def _settle(logprobs: str) -> str:
    """Have SGLang tell logprobs before (raw) or after the temperature, and return which it tells by itself.

    It reads a variable when it is imported.
    """
    from sglang.srt.layers import sampler
    from sglang.srt.utils import get_bool_env_var

    sampler.SGLANG_RETURN_ORIGINAL_LOGPROB = logprobs == "raw"
    return "raw" if get_bool_env_var("SGLANG_RETURN_ORIGINAL_LOGPROB") else "processed"


def _listen(model: Any, prompt: int) -> None:
    """Keep what the modules give out in the next forward, of a prompt of so many tokens."""
    stack = contextlib.ExitStack()
    _listening.update(stack=stack, captured=stack.enter_context(capture.listening([*hf_taps.taps(model)], prompt)))


def _heard(path: str) -> dict[str, Any]:
    """Stop listening and put what was kept on the plane of files."""
    _listening.pop("stack").close()
    return capture.put(_listening.pop("captured"), path)


def _watch(model: Any, on: bool) -> list[list[list[list[int]]]]:
    """Begin to note the experts that tokens go to, or end it: layers, forward passes, tokens, choices."""
    if on:
        for module in model.modules():
            if type(module).__name__ == "TopK":
                seen: list[list[list[int]]] = []
                note = module.register_forward_hook(
                    lambda _, __, output, seen=seen: seen.append(output.topk_ids.tolist())
                )
                _watched.append((note, seen))
        return []
    found = [seen for _, seen in _watched]
    for note, _ in _watched:
        note.remove()
    _watched.clear()
    return found
