"""Edits the tensors of a safetensors file and writes it again whole: no hole and no wrong length gives the edit away."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any


def edit_tensors(path: Path, dice: random.Random, roles: tuple[str, ...]) -> str:
    """Remove, rename, cast, reshape, cut or repeat a tensor of a file, or the tensors of a module, and say which.

    roles: last names that a tensor may take instead of its own.
    """
    from safetensors import safe_open
    from safetensors.torch import load_file, save_file

    tensors = load_file(path)
    with safe_open(path, "pt") as file:
        metadata = file.metadata()
    name = dice.choice(sorted(tensors))
    module, _, role = name.rpartition(".")
    beside = [each for each in tensors if each.startswith(f"{module}.")]
    twins = [each for each in tensors if each.endswith(f".{role}") and each != name]
    numbered = [at for at, part in enumerate(name.split(".")) if part.isdigit()]
    ways: dict[str, Callable[[], Any]] = {
        "remove": lambda: tensors.pop(name),
        "remove module": lambda: [tensors.pop(each) for each in beside],
        "remove everywhere": lambda: [tensors.pop(each) for each in [*twins, name]],
        "rename role": lambda: rename(tensors, [name], role, dice.choice([each for each in roles if each != role])),
        "rename role everywhere": lambda: rename(
            tensors, [*twins, name], role, dice.choice([each for each in roles if each != role])
        ),
        "rename module": lambda: rename(tensors, beside, module, f"{module}s"),
        "prefix": lambda: rename(tensors, list(tensors), "", dice.choice(["module.", "model.", "base_model.model."])),
        "strip": lambda: rename(tensors, list(tensors), f"{name.partition('.')[0]}.", ""),
        "another layer": lambda: rename(tensors, beside, module, renumber(module, numbered)),
        "cast": lambda: tensors.update({name: cast(tensors[name], dice)}),
        "reshape": lambda: tensors.update({name: reshape(tensors[name], dice)}),
        "cut": lambda: tensors.update({name: cut(tensors[name], dice)}),
        "spoil": lambda: tensors.update({name: spoil(tensors[name], dice)}),
    }
    way = dice.choice(sorted(ways))
    ways[way]()
    save_file({each: tensor.contiguous().clone() for each, tensor in tensors.items()}, path, metadata)
    now = tensors.get(name)
    after = f" to {str(now.dtype).removeprefix('torch.')} {list(now.shape)}" if now is not None else ""
    return f"{way} {name}{after}"


def rename(tensors: dict[str, Any], names: list[str], old: str, new: str) -> None:
    """Replace the first (of a last name: the last) occurrence of a part in names."""
    for name in names:
        if old in name:
            at = name.rindex(old) if old and "." not in old else name.index(old)
            tensors[name[:at] + new + name[at + len(old) :]] = tensors.pop(name)


def renumber(module: str, numbered: list[int]) -> str:
    """Return the name of a module in a layer that the model does not have."""
    parts = module.split(".")
    for at in numbered[:1]:
        parts[at] = "7"
    return ".".join(parts)


def cast(tensor: Any, dice: random.Random) -> Any:
    """Return the same numbers, as far as they fit, in another dtype."""
    import torch

    kinds = [torch.float32, torch.float16, torch.bfloat16, torch.int32, torch.int64, torch.uint8, torch.int8]
    return tensor.float().nan_to_num().to(dice.choice([kind for kind in kinds if kind != tensor.dtype]))


def reshape(tensor: Any, dice: random.Random) -> Any:
    """Return the same numbers in another shape."""
    ways = [tensor.flatten(), tensor[None], tensor[..., None] if tensor.dim() else tensor[None]]
    if tensor.dim() == 2:
        ways += [tensor.T, tensor.reshape(tensor.shape[1], tensor.shape[0])]
    return dice.choice(ways)


def cut(tensor: Any, dice: random.Random) -> Any:
    """Return a part of a tensor, or a tensor with a part of it twice."""
    import torch

    if not tensor.dim():
        return torch.stack([tensor, tensor])
    side = dice.randrange(tensor.dim())
    length = tensor.shape[side]
    ways = [tensor.narrow(side, 0, length // 2), tensor.narrow(side, 0, max(length - 1, 0))]
    return dice.choice([*ways, torch.cat([tensor, tensor.narrow(side, 0, 1)], side)])


def spoil(tensor: Any, dice: random.Random) -> Any:
    """Return a tensor whose numbers no writer stores: zeros, not-a-numbers, infinities."""
    import torch

    if not tensor.is_floating_point():
        return torch.zeros_like(tensor)
    return torch.full(tensor.shape, dice.choice([0.0, float("nan"), 1e38])).to(tensor.dtype)
