"""Walks the numbers that a model keeps on the host: scales, epsilons and sizes that its modules compute with."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .tensors import INSPECTED_PACKAGES, MAX_DEPTH, MODULE_ATTRIBUTES

MAX_INT = 1 << 31
"""Larger integers are addresses and identifiers of one process, not numbers of the model."""


def walk(model: Any, prefix: str = "") -> Iterator[tuple[str, float]]:
    """Yield (name, value) of the floats and integers among the attributes of all modules, and of the objects they compute with.

    Kernels read some of them in place of a tensor: vLLM's attention holds `_k_scale_float` beside the buffer `_k_scale`.
    """
    for module_name, module in model.named_modules():
        start = f"{prefix}{module_name}." if module_name else prefix
        for name, value in list(vars(module).items()):
            if name not in MODULE_ATTRIBUTES:
                yield from _search(start + name, value, MAX_DEPTH, {id(module)})


def _search(name: str, value: Any, depth: int, ancestors: set[int]) -> Iterator[tuple[str, float]]:
    """Yield the numbers that an attribute's value holds. Modules have entries of their own."""
    import torch

    if isinstance(value, bool):
        return
    if isinstance(value, float) or (isinstance(value, int) and type(value) is int and abs(value) < MAX_INT):
        yield name, value
    elif id(value) in ancestors or not depth or isinstance(value, (torch.nn.Module, torch.Tensor, type)):
        return
    elif isinstance(value, (list, tuple, dict)):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, item in list(items)[:64]:
            yield from _search(f"{name}.{key}", item, depth - 1, {*ancestors, id(value)})
    elif type(value).__module__.startswith(INSPECTED_PACKAGES):
        for key, item in list(getattr(value, "__dict__", {}).items()):
            yield from _search(f"{name}.{key}", item, depth - 1, {*ancestors, id(value)})


def read_scalars(rank: int, scalars: Iterator[tuple[str, float]]) -> dict[str, Any]:
    """Return [name, whether it is a float, the number as text] of every number; text keeps all digits, and NaN."""
    return {"rank": rank, "entries": [[name, isinstance(value, float), repr(value)] for name, value in scalars]}
