"""Walks every tensor that a model of torch modules computes with: parameters, buffers, and tensors derived from them."""

from __future__ import annotations

import types
from collections.abc import Iterator
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
    for name, value in list(vars(module).items()):
        if name not in MODULE_ATTRIBUTES and "hooks" not in name:
            yield from _search(name, value, MAX_DEPTH, {id(module)})


def _search(name: str, value: Any, depth: int, ancestors: set[int]) -> Iterator[tuple[str, Any, str]]:
    """Yield (name, tensor or handler, why it cannot be read or "") of the tensors that an attribute's value holds."""
    import torch

    if any(name.endswith(ending) for ending in TRANSIENT) or id(value) in ancestors or not depth:
        return
    if isinstance(value, torch.Tensor):
        yield name, value, ""
    elif isinstance(value, torch.nn.Module):
        return
    elif hasattr(value, "handler_tensor"):
        yield name, value, "packed for oneDNN"
    elif isinstance(value, (list, tuple)):
        for number, item in enumerate(value[:64]):
            yield from _search(f"{name}.{number}", item, depth - 1, {*ancestors, id(value)})
    elif isinstance(value, dict):
        for key, item in list(value.items())[:64]:
            yield from _search(f"{name}.{key}", item, depth - 1, {*ancestors, id(value)})
    elif isinstance(value, types.FunctionType) and value.__closure__:
        for variable, cell in zip(value.__code__.co_freevars, value.__closure__):
            yield from _search(f"{name}.{variable}", _cell_contents(cell), depth - 1, {*ancestors, id(value)})
    elif type(value).__module__.startswith(INSPECTED_PACKAGES):
        for key, item in list(getattr(value, "__dict__", {}).items()):
            yield from _search(f"{name}.{key}", item, depth - 1, {*ancestors, id(value)})


def _cell_contents(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return None
