"""Watches the syncs into an engine from inside it, where the environment variable CKPTCHECK_WATCH asks for that.

vLLM loads `watch_vllm` in each of its processes (entry points ``vllm.general_plugins``), SGLang loads `watch_sglang`
(``sglang.srt.plugins``), so that no line of the job's framework changes. Written against vLLM 0.32.0
(`WorkerBase` with `load_model`, `execute_model` and `finish_weight_update`) and SGLang 0.5.23
(`ModelRunner.load_model` and `forward`, `WeightUpdater.end_weight_update`). Whatever happens here, the engine goes on.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ckptcheck.watch.syncing import Syncing
    from ckptcheck.watch.watch import Watch

VARIABLE = "CKPTCHECK_WATCH"
SETTINGS: dict[str, Callable[[str], Any]] = {
    "record": Path, "every": int, "share": float, "budget": float, "keep": int, "metrics": str
}  # fmt: skip
"""Arguments of `Watch` that the variable may have → how each is read."""
QUIET_SECONDS = 10.0
"""Seconds without a weight after which a sync is over, also if it lacks names of an earlier one: it may have lost a tensor."""


def watch_vllm() -> None:
    """Watch the model of each worker that this process of vLLM begins. Does nothing where CKPTCHECK_WATCH is not set."""
    if os.environ.get(VARIABLE):
        _quietly("watch vLLM", _hook_vllm)


def watch_sglang() -> None:
    """Watch the model of each scheduler that this process of SGLang begins. Does nothing where CKPTCHECK_WATCH is not set."""
    if os.environ.get(VARIABLE):
        _quietly("watch SGLang", _hook_sglang)


def parse_settings(text: str) -> dict[str, Any]:
    """Return the settings of CKPTCHECK_WATCH. Raises ValueError for one that is not known, or no number where it has to be one.

    >>> parse_settings("share=0.05,every=5")
    {'share': 0.05, 'every': 5}
    """
    settings = {}
    for pair in filter(None, (part.strip() for part in text.split(","))):
        name, _, value = pair.partition("=")
        if name not in SETTINGS or not value:
            raise ValueError(f"{pair} is none of {', '.join(f'{name}=…' for name in SETTINGS)}")
        try:
            settings[name] = SETTINGS[name](value)
        except ValueError:
            raise ValueError(f"{name} takes a number, not {value}") from None
    return settings


def open_watch(model: Any, name: str, rank: int = 0) -> Watch:
    """Return the watch of one engine's model as CKPTCHECK_WATCH says. name: the engine, for the record.

    model: None for what no module of the engine holds as it was sent: adapters, whose record has a name of its own.
    rank: of this process within its engine. Each has a record of its own, and the first one sends the metrics.
    Raises ValueError for settings that are not known.
    """
    from ckptcheck.watch.engine_side import module
    from ckptcheck.watch.watch import Watch

    settings = parse_settings(os.environ[VARIABLE])
    if model is None and (record := settings.get("record")) is not None:
        settings["record"] = record.with_name(f"{record.stem}-adapters{record.suffix}")
    if rank:
        settings.pop("metrics", None)
        if (record := settings.get("record")) is not None:
            settings["record"] = record.with_name(f"{record.stem}.rank{rank}{record.suffix}")
    return Watch(None if model is None else module(model, name), **settings)


class ModelSyncs:
    """Tells the syncs of one model apart by what is loaded into it.

    A sync begins with the first weight that is loaded. It ends before the model computes again, once it has got all names of the
    largest sync before, or nothing for `QUIET_SECONDS`; when its engine ends the update; when a name comes again; and when the
    process ends. So an update in many calls counts as one, also where requests run between its buckets, and one that lost a tensor
    ends too.
    """

    def __init__(self, model: Any, watch: Watch) -> None:
        self._watch = watch
        self._sync: Syncing | None = None
        self._names: set[str] = set()
        self._all_names: frozenset[str] = frozenset()
        self._loaded_at = 0.0
        atexit.register(self.end)
        load = model.load_weights

        @wraps(load)
        def watched(weights: Any, *arguments: Any, **keywords: Any) -> Any:
            return load(self._pass_through(weights), *arguments, **keywords)

        model.load_weights = watched

    def _pass_through(self, weights: Any) -> Iterator[Any]:
        for item in weights:
            _quietly("look at a weight", partial(self._see, item))
            yield item

    def _see(self, item: Any) -> None:
        name = item[0]
        if self._sync is not None and name in self._names:
            self.end()
        if self._sync is None:
            self._sync = self._watch(step=max(0, self._watch.number - 1))
            self._sync.before()
        self._names.add(name)
        self._loaded_at = time.monotonic()
        self._sync.sent([item])

    def end_if_complete(self) -> None:
        """End the sync where it has got all the names of the largest one before. Called before the model computes."""
        if self._sync is None:
            return
        # the first sync has no earlier names to compare with, and requests may run between its buckets
        is_whole = bool(self._all_names) and self._names >= self._all_names
        if is_whole or time.monotonic() - self._loaded_at > QUIET_SECONDS:
            self.end()

    def end(self) -> None:
        """End the sync: look at the engine, write the record, report findings."""
        if self._sync is None:
            return
        sync, names = self._sync, frozenset(self._names)
        self._sync, self._names = None, set()
        self._all_names = max(self._all_names, names, key=len)
        _quietly("end a sync", sync.after)


class AdapterSyncs:
    """Records each load of an adapter (LoRA) into vLLM as a sync, as long as all have one name: none passes `load_weights`.

    vLLM 0.32.0 calls `WorkerLoRAManager.add_adapter` for a request with an adapter, and to load one in advance. Then the manager
    has the adapter as a `LoRAModel`, whose layers hold `lora_a` and `lora_b`, each a tensor or a list of tensors. An engine that
    serves adapters of several names may load an old one again, which is no fault: the watch then stops recording.
    """

    def __init__(self, manager: Any, watch: Watch) -> None:
        """Watch a `WorkerLoRAManager`. watch: one without an engine, because vLLM rearranges the adapters that it loads."""
        self._manager, self._watch = manager, watch
        self._last: Any = None
        self._name: str | None = None
        self._has_several = False
        add = manager.add_adapter

        @wraps(add)
        def watched(request: Any, *arguments: Any, **keywords: Any) -> Any:
            result = add(request, *arguments, **keywords)
            _quietly("look at an adapter", partial(self._look, request))
            return result

        manager.add_adapter = watched

    def _look(self, request: Any) -> None:
        """Record the adapter of a request, unless it is the last recorded one."""
        if self._has_several:
            return
        adapter = self._manager._adapter_manager.get_adapter(request.lora_int_id)
        if adapter is None or adapter is self._last:
            return
        if self._name is not None and request.lora_name != self._name:
            self._has_several = True
            sys.stderr.write(
                f"ckptcheck.watch records no more adapters: {self._name} and {request.lora_name} are served side by side\n"
            )
            return
        self._last, self._name = adapter, request.lora_name
        with self._watch(step=max(0, self._watch.number - 1)) as sync:
            sync.sent(list(list_adapter_tensors(adapter)))


def list_adapter_tensors(adapter: Any) -> Iterator[tuple[str, Any]]:
    """Yield the tensors of a `LoRAModel` as ``module.lora_A.weight``; those of fused modules have the number of their part."""
    for module, layer in adapter.loras.items():
        for side, held in (("lora_A", layer.lora_a), ("lora_B", layer.lora_b)):
            if not isinstance(held, list | tuple):
                yield f"{module}.{side}.weight", held
                continue
            for part, tensor in enumerate(held):
                if tensor is not None:
                    yield f"{module}.{side}.{part}.weight", tensor


def _hook_vllm() -> None:
    # an engine process loads its plug-ins right before it makes its worker, so WorkerBase.__init__ is not yet called
    worker_base = importlib.import_module("vllm.v1.worker.worker_base")
    base = worker_base.WorkerBase
    initialize = base.__init__
    if getattr(initialize, "is_watched", False):
        return

    @wraps(initialize)
    def watched(self: Any, *arguments: Any, **keywords: Any) -> None:
        initialize(self, *arguments, **keywords)
        _quietly("watch a worker of vLLM", lambda: _watch_worker(self))

    watched.is_watched = True  # type: ignore[attr-defined]
    base.__init__ = watched


def _watch_worker(worker: Any) -> None:
    """Watch the model of a worker from its first load on, and on the first rank its adapters, which all ranks load alike."""
    rank = int(getattr(worker, "rank", 0))
    syncs: list[ModelSyncs] = []
    load, execute, finish = worker.load_model, worker.execute_model, getattr(worker, "finish_weight_update", None)

    def begin() -> None:
        syncs[:] = [ModelSyncs(worker.get_model(), open_watch(worker.get_model(), "vllm", rank))]

    def begin_adapters() -> None:
        manager = getattr(getattr(worker, "model_runner", None), "lora_manager", None)
        if manager is not None and not rank:
            AdapterSyncs(manager, open_watch(None, "vllm"))

    worker.load_model = _call_after(load, lambda: _quietly("watch the model of vLLM", begin))
    worker.load_model = _call_after(worker.load_model, lambda: _quietly("watch the adapters of vLLM", begin_adapters))
    worker.execute_model = _call_before(execute, lambda: syncs[0].end_if_complete() if syncs else None)
    if finish is not None:
        worker.finish_weight_update = _call_after(finish, lambda: syncs[0].end() if syncs else None)


def _hook_sglang() -> None:
    registry = importlib.import_module("sglang.srt.plugins.hook_registry")
    syncs: dict[int, ModelSyncs] = {}

    def begin(runner: Any) -> None:
        if not getattr(runner, "is_draft_worker", False):
            syncs[id(runner)] = ModelSyncs(runner.model, open_watch(runner.model, "sglang", _find_rank(runner)))

    def after_load(result: Any, runner: Any, *_: Any, **__: Any) -> None:
        _quietly("watch the model of SGLang", lambda: begin(runner))

    def before_forward(runner: Any, *_: Any, **__: Any) -> None:
        if (own := syncs.get(id(runner))) is not None:
            own.end_if_complete()

    def after_update(result: Any, *_: Any, **__: Any) -> None:
        for own in syncs.values():
            own.end()

    runner = "sglang.srt.model_executor.model_runner.ModelRunner"
    updater = "sglang.srt.model_executor.model_runner_components.weight_updater.WeightUpdater"
    register, kinds = registry.HookRegistry.register, registry.HookType
    register(f"{runner}.load_model", after_load, kinds.AFTER)
    register(f"{runner}.forward", before_forward, kinds.BEFORE)
    register(f"{updater}.end_weight_update", after_update, kinds.AFTER)


def _find_rank(runner: Any) -> int:
    """Return the rank of this process within its engine. Older runners of SGLang have it themselves."""
    rank = getattr(runner, "tp_rank", None)
    if rank is None:
        distributed = importlib.import_module("torch.distributed")
        rank = distributed.get_rank() if distributed.is_available() and distributed.is_initialized() else 0
    return int(rank)


def _call_after(function: Callable[..., Any], action: Callable[[], object]) -> Callable[..., Any]:
    @wraps(function)
    def watched(*arguments: Any, **keywords: Any) -> Any:
        result = function(*arguments, **keywords)
        action()
        return result

    return watched


def _call_before(function: Callable[..., Any], action: Callable[[], object]) -> Callable[..., Any]:
    @wraps(function)
    def watched(*arguments: Any, **keywords: Any) -> Any:
        action()
        return function(*arguments, **keywords)

    return watched


def _quietly(task: str, action: Callable[[], object]) -> None:
    """Run an action. An exception becomes one line on stderr, and does not reach the engine."""
    try:
        action()
    except Exception as error:
        with contextlib.suppress(OSError):
            sys.stderr.write(f"ckptcheck.watch could not {task}: {type(error).__name__}: {error}\n")
