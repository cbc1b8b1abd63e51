"""Walks what a model of torch modules computes with: parameters, buffers, tensors derived from them, and numbers on the host."""

from __future__ import annotations

import types
from collections.abc import Iterable, Iterator
from typing import Any

DTYPES = {
    "float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "float8_e4m3fn": "F8_E4M3",
    "float8_e4m3fnuz": "F8_E4M3FNUZ", "float8_e5m2": "F8_E5M2", "float8_e5m2fnuz": "F8_E5M2FNUZ",
    "float8_e8m0fnu": "F8_E8M0", "float4_e2m1fn_x2": "F4", "int64": "I64", "int32": "I32", "int16": "I16",
    "int8": "I8", "uint64": "U64", "uint32": "U32", "uint16": "U16", "uint8": "U8", "bool": "BOOL", "complex64": "C64",
}  # fmt: skip
"""torch's name of a dtype → that of safetensors."""
TORCH = {name: torch_name for torch_name, name in DTYPES.items()}
INSPECTED_PACKAGES = ("vllm.model_executor", "vllm.v1.attention", "vllm._custom_ops", "sglang.srt.layers")
"""The walk searches objects of these packages: kernels and quantization methods keep tensors of their own."""
MAX_DEPTH = 4
"""Levels of objects and containers to search: kernels hang a few below a module, and objects may refer to each other."""
TRANSIENT = ("kv_cache", "workspace")
"""Attributes that hold activations and scratch memory, not loaded weights."""
MODULE_ATTRIBUTES = frozenset({"_parameters", "_buffers", "_modules"})
MOST_ITEMS = 64
"""Items of a container to search."""
MAX_INT = 1 << 31
"""Larger integers are addresses and identifiers of one process, not numbers of the model."""


def dtype_name(tensor: Any) -> str:
    """Return a tensor's dtype as safetensors spells it."""
    name = str(tensor.dtype).rpartition(".")[2]
    return DTYPES.get(name, name)


def storage_id(tensor: Any) -> str:
    """Return the address of a tensor's storage and its offset there; "" if it has no bytes.

    For a oneDNN handler: the address of the packed copy, which changes when the copy is packed again.
    """
    if hasattr(tensor, "handler_tensor"):
        return f"{int(tensor.handler_tensor):x}"
    if tensor.device.type == "meta" or not tensor.untyped_storage().nbytes():
        return ""
    return f"{tensor.untyped_storage().data_ptr():x}+{tensor.storage_offset() * tensor.element_size()}"


def walk(model: Any, prefix: str = "") -> Iterator[tuple[str, str, Any, str]]:
    """Yield (name, kind, tensor, why its numbers cannot be read or "") of all tensors of a model.

    A packed copy is not a tensor but a oneDNN handler, which reveals only the address of its storage.

    A name consists of the module's name and the attribute. Aliases of parameters have an entry each; a derived tensor that is
    exactly a parameter or buffer has none. A buffer in the memory of a parameter is derived from that.
    """
    import torch

    known, owned = set(), set()
    derived = {name: list(_derived_tensors(module)) for name, module in model.named_modules(remove_duplicate=False)}
    for name, tensor in model.named_parameters(remove_duplicate=False):
        known.add(_view_key(tensor))
        owned.add(_memory(tensor))
        packed = any(opaque for _, _, opaque in derived[name.rpartition(".")[0]])
        empty = "it is empty: the engine computes with a packed copy" if packed else "it is empty"
        yield prefix + name, "parameter", tensor, "" if tensor.numel() else empty
    for name, tensor in model.named_buffers(remove_duplicate=False):
        known.add(_view_key(tensor))
        yield prefix + name, "derived" if _memory(tensor) in owned - {""} else "buffer", tensor, ""
    for module, entries in derived.items():
        for name, tensor, opaque in entries:
            if not isinstance(tensor, torch.Tensor) or _view_key(tensor) not in known:
                yield f"{prefix}{module}.{name}" if module else prefix + name, "derived", tensor, opaque


def _memory(tensor: Any) -> str:
    """Return the address of a tensor's storage; "" if it has no bytes."""
    return storage_id(tensor).partition("+")[0]


def _view_key(tensor: Any) -> tuple[Any, ...]:
    return storage_id(tensor) or id(tensor), tuple(tensor.shape), tensor.stride(), tensor.dtype


def _derived_tensors(module: Any) -> Iterator[tuple[str, Any, str]]:
    """Yield (name, tensor or handler, why it cannot be read or "") of what the attributes of a module hold."""
    import torch

    for name, value in _search_module(module):
        if any(part.endswith(TRANSIENT) for part in name.split(".")):
            continue
        if isinstance(value, torch.Tensor):
            yield name, value, ""
        elif hasattr(value, "handler_tensor"):
            yield name, value, "packed for oneDNN"


def walk_scalars(model: Any, prefix: str = "") -> Iterator[tuple[str, float]]:
    """Yield (name, value) of the floats and integers among the attributes of all modules, and of the objects they compute with.

    Kernels read some of them in place of a tensor: vLLM's attention holds `_k_scale_float` beside the buffer `_k_scale`.
    """
    for module_name, module in model.named_modules():
        start = f"{prefix}{module_name}." if module_name else prefix
        for name, value in _search_module(module):
            if isinstance(value, float) or (type(value) is int and abs(value) < MAX_INT):
                yield start + name, value


def _search_module(module: Any) -> Iterator[tuple[str, Any]]:
    """Yield the name and the value of everything that the attributes of a module hold, also inside objects and containers."""
    for name, value in list(vars(module).items()):
        if name not in MODULE_ATTRIBUTES and "hooks" not in name:
            yield from _search(name, value, MAX_DEPTH, {id(module)})


def _search(name: str, value: Any, depth: int, ancestors: set[int]) -> Iterator[tuple[str, Any]]:
    """Yield an attribute's value, and what it holds. Modules have entries of their own."""
    import torch

    if id(value) in ancestors or isinstance(value, torch.nn.Module):
        return
    yield name, value
    if hasattr(value, "handler_tensor"):
        return
    items: Iterable[tuple[Any, Any]] = ()
    if isinstance(value, (list, tuple)):
        items = enumerate(value[:MOST_ITEMS])
    elif isinstance(value, dict):
        items = list(value.items())[:MOST_ITEMS]
    elif isinstance(value, types.FunctionType) and value.__closure__:
        items = zip(value.__code__.co_freevars, map(_cell_contents, value.__closure__))
    elif type(value).__module__.startswith(INSPECTED_PACKAGES) and not isinstance(value, (torch.Tensor, type)):
        items = list(getattr(value, "__dict__", {}).items())
    for key, item in items if depth > 1 else ():
        yield from _search(f"{name}.{key}", item, depth - 1, {*ancestors, id(value)})


def _cell_contents(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return None
