"""Records which elements of a model's parameters a loader writes, whether they have memory or are on the meta device."""

from __future__ import annotations

import re
from collections.abc import Collection
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

Region = tuple[int, tuple[int, ...], tuple[int, ...]]
"""Offset, shape and strides of a view within its storage."""


HAVE_DEFAULTS = "BaseKVCacheMethod"
"""The quantization method of attention, in vLLM and in SGLang: its scales stay at 1 if nothing is stored for them."""
FROM_CONFIG = re.compile(r"g_idx|sort_indices|qzeros|weight_shape|input_global_scale")
"""Parameters that an engine makes from the quantization's configuration, or leaves unread."""


def list_optional(model: torch.nn.Module) -> set[str]:
    """Return the parameters that a checkpoint may leave out: they have defaults, or the configuration makes them."""
    optional = set()
    for path, module in model.named_modules():
        method = getattr(module, "quant_method", None)
        has_defaults = any(kind.__name__ == HAVE_DEFAULTS for kind in type(method).__mro__)
        for name, _ in module.named_parameters(recurse=False):
            if has_defaults or FROM_CONFIG.search(name):
                optional.add(f"{path}.{name}" if path else name)
    return optional


class ParameterFills(TorchDispatchMode):  # type: ignore[misc]
    """Inside this context it records every write into a parameter of `model`, by the region of its storage."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self._parameters = dict(model.named_parameters())
        self._first = {name: _storage(parameter) for name, parameter in self._parameters.items()}
        self._written: dict[int, set[Region]] = {storage: set() for storage in self._first.values()}
        self.model = model

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        copies_nothing = func is torch.ops.aten.copy_.default and args[1].is_meta and not args[0].is_meta
        answer = args[0] if copies_nothing else func(*args, **(kwargs or {}))
        if func._schema.is_mutable:
            for declared, given in zip(func._schema.arguments, args):
                alias = declared.alias_info
                if alias is not None and alias.is_write and isinstance(given, torch.Tensor):
                    regions = self._written.get(_storage(given))
                    if regions is not None:
                        regions.add((given.storage_offset(), tuple(given.shape), tuple(given.stride())))
        return answer

    def count_written(self) -> dict[str, tuple[int, int]]:
        """Return parameter → the number of written elements (at most all), and the number of all its elements.

        A parameter counts as written if another one, or other memory, replaced it. Writes of the same region count
        once.
        """
        counts = {}
        now = dict(self.model.named_parameters())
        for name, parameter in self._parameters.items():
            size = parameter.numel()
            storage = self._first[name]
            if name not in now or _storage(now[name]) != storage:
                counts[name] = (size, size)
                continue
            written = sum(torch.Size(shape).numel() for _, shape, _ in self._written[storage])
            counts[name] = (min(written, size), size)
        return counts


def describe_fills(fills: ParameterFills, zeros: Collection[str] = ()) -> dict[str, Any]:
    """Return how many parameters a model has, and the required ones that are not filled, or filled in part.

    zeros: parameters that start at zero, which is right for a model that never had them. If no layer fills such a
    parameter any further, it is listed in `at_zero`; if another layer has more, this one lost a part.
    """
    counts, optional = fills.count_written(), list_optional(fills.model)
    needed = [(name, written, size) for name, (written, size) in counts.items() if size and name not in optional]
    most: dict[str, int] = {}
    for name, written, _ in needed:
        most[_without_layer(name)] = max(written, most.get(_without_layer(name), 0))
    at_zero = {name for name, written, size in needed if name in zeros and written == most[_without_layer(name)] < size}
    lacking = [row for row in needed if row[0] not in at_zero and row[1] < row[2]]
    return {
        "parameters": len(counts),
        "unfilled": [name for name, written, _ in lacking if not written],
        "partly": [row for row in lacking if row[1]],
        "at_zero": at_zero,
    }


def _without_layer(name: str) -> str:
    """Return a parameter's name without its numbers, which is the same in every layer."""
    return re.sub(r"\d+", "#", name)


def _storage(tensor: torch.Tensor) -> int:
    """Return an identifier of a tensor's storage, valid as long as the storage lives."""
    return int(tensor.untyped_storage()._cdata)


def run_threads_inline() -> None:
    """From now on run the tasks of thread pools at once, in this thread: a dispatch mode sees only its own thread."""

    def submit(pool: Any, function: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(function(*args, **kwargs))
        except BaseException as error:
            future.set_exception(error)
        return future

    ThreadPoolExecutor.submit = submit  # type: ignore[method-assign]
