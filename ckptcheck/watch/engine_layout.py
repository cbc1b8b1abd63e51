"""Finds where an engine's module holds each tensor that a trainer sends: once, and again when the module has changed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ckptcheck.consumers.engine_tensors import find_source_tensors
from ckptcheck.watch.engine_parts import split_fused


@dataclass(frozen=True)
class EnginePart:
    """A tensor of the engine, or the part of a fused one that the trainer sends by a name of its own."""

    name: str
    """The trainer's name if it sends the part, else the engine's."""
    sources: tuple[str, ...]
    """The trainer's tensors that it is built from: one for a part; several for a fused tensor that the watch cannot split."""
    owner: Any
    """The module that has the parameter."""
    parameter: str
    """The parameter's name there."""
    geometry: tuple[Any, Any]
    """Shape and strides of the parameter. If they change, `view` no longer holds."""
    view: tuple[Any, Any, int]
    """Shape, strides and offset of the part within the parameter."""

    def find_tensor(self) -> Any:
        """Return the part as the engine has it now, None where the parameter is gone or has another form."""
        tensor = self.owner._parameters.get(self.parameter)
        if tensor is None or (tensor.shape, tensor.stride()) != self.geometry:
            return None
        shape, strides, offset = self.view
        tensor = tensor.detach()
        if offset == 0 and (shape, strides) == self.geometry:
            return tensor
        return tensor.as_strided(shape, strides, tensor.storage_offset() + offset)


class EngineLayout:
    """The parts of a module's parameters, by the names that a trainer sends. It holds no tensor."""

    def __init__(self, model: Any, names: frozenset[str]) -> None:
        self._model, self.names = model, names
        self._modules = list(_iterate_modules(model))
        self._sizes = [len(module._parameters) for module in self._modules]
        self.parts: list[EnginePart] = []
        self.dtypes: dict[str, Any] = {}
        """Name of each part → its dtype."""
        self.empty: list[str] = []
        """Names of parameters without elements: the engine computes with something else."""
        modules = dict(model.named_modules(remove_duplicate=False))
        for name, tensor in model.named_parameters():
            path, _, last = name.rpartition(".")
            if not tensor.numel():
                self.empty.append(name)
                continue
            geometry = (tensor.shape, tensor.stride())
            for part, view in split_fused(name, tensor, modules[path], names):
                sources = (part,) if part in names else tuple(find_source_tensors(part, names))
                place = (view.shape, view.stride(), view.storage_offset() - tensor.storage_offset())
                self.parts.append(EnginePart(part, sources, modules[path], last, geometry, place))
                self.dtypes[part] = tensor.dtype

    def fits(self) -> bool:
        """Return whether the module still has the modules and parameters of this layout."""
        modules = list(_iterate_modules(self._model))
        return (
            len(modules) == len(self._modules)
            and all(now is before for now, before in zip(modules, self._modules, strict=True))
            and [len(module._parameters) for module in modules] == self._sizes
            and sum(not each.numel() for module in modules for each in module._parameters.values() if each is not None)
            == len(self.empty)
        )


def _iterate_modules(model: Any) -> Iterator[Any]:
    """Yield a torch module and all below it, each once, in less time than `named_modules`, which also makes their names."""
    seen, waiting = set[int](), [model]
    while waiting:
        module = waiting.pop()
        if module is not None and id(module) not in seen:
            seen.add(id(module))
            yield module
            waiting.extend(module._modules.values())
