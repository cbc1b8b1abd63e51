"""Finds where an engine's module holds each tensor that a trainer sends: once, and again when the module has changed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
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
    is_contiguous: bool
    """Whether the part lies in one piece."""

    def find_parameter(self) -> Any:
        """Return the parameter as the engine has it now, None where it is gone or has another form."""
        tensor = self.owner._parameters.get(self.parameter)
        if tensor is None or (tensor.shape, tensor.stride()) != self.geometry:
            return None
        return tensor

    def find_tensor(self) -> Any:
        """Return the part as the engine has it now, None where the parameter is gone or has another form."""
        tensor = self.find_parameter()
        if tensor is None or self.view == (*self.geometry, 0):
            return tensor
        shape, strides, offset = self.view
        return tensor.as_strided(shape, strides, tensor.storage_offset() + offset)


class EngineLayout:
    """The parts of a module's parameters, by the names that a trainer sends. It holds no tensor."""

    def __init__(self, model: Any, names: frozenset[str]) -> None:
        self._model, self.names = model, names
        self._groups: dict[tuple[int, int], Sequence[EnginePart]] = {}
        self._modules = list(_iterate_modules(model))
        self._sizes = [len(module._parameters) for module in self._modules]
        self.parts: list[EnginePart] = []
        self.empty: list[tuple[str, Any]] = []
        """Name and module of each parameter without elements: the engine computes with something else."""
        modules = dict(model.named_modules(remove_duplicate=False))
        for name, tensor in model.named_parameters():
            path, _, last = name.rpartition(".")
            owner = modules[path]
            if tensor.numel():
                self.parts += self._find_parts(name, tensor, owner, last)
            else:
                self.empty.append((name, owner))

    def _find_parts(self, name: str, tensor: Any, owner: Any, last: str) -> Iterator[EnginePart]:
        geometry = (tensor.shape, tensor.stride())
        for part, view in split_fused(name, tensor, owner, self.names):
            sources = (part,) if part in self.names else tuple(find_source_tensors(part, self.names))
            place = (view.shape, view.stride(), view.storage_offset() - tensor.storage_offset())
            yield EnginePart(part, sources, owner, last, geometry, place, view.is_contiguous())

    def list_parts(self, group: tuple[int, int], includes: Callable[[str], bool]) -> Sequence[EnginePart]:
        """Return the parts that are built from tensors of a group, or from none that the trainer sends.

        group: its number and the number of groups, the key under which the layout caches the answers of `includes`.
        """
        parts = self._groups.get(group)
        if parts is None:
            parts = self._groups[group] = [
                part for part in self.parts if not part.sources or any(map(includes, part.sources))
            ]
        return parts

    def fits(self) -> bool:
        """Return whether the module still has the modules and parameters of this layout."""
        modules = list(_iterate_modules(self._model))
        return (
            len(modules) == len(self._modules)
            and all(map(_is_same, modules, self._modules))
            and [len(module._parameters) for module in modules] == self._sizes
            and all(module._parameters[parameter].numel() == 0 for module, parameter in self._list_empty())
        )

    def _list_empty(self) -> Iterator[tuple[Any, str]]:
        return ((owner, name.rpartition(".")[2]) for name, owner in self.empty)


def _is_same(first: Any, second: Any) -> bool:
    return first is second


def _iterate_modules(model: Any) -> Iterator[Any]:
    """Yield a torch module and all below it, each once, in less time than `named_modules`, which also makes their names."""
    seen, waiting = set[int](), [model]
    while waiting:
        module = waiting.pop()
        if module is not None and id(module) not in seen:
            seen.add(id(module))
            yield module
            waiting.extend(module._modules.values())
