"""Reads LoRA adapters as PEFT writes them: merges one into a checkpoint, and writes others of the same shape.

The merge is W + scale · B · A in float64, with PEFT's scale: alpha / r, or alpha / √r for rsLoRA, with the patterns of its config.
"""

from __future__ import annotations

import json
import math
import os
import re
import shutil
from typing import Any

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
PREFIX = "base_model.model."
PAIR = re.compile(r"(?P<module>.+)\.lora_(?P<side>[AB])(?:\.\w+)?\.weight")


def read_adapter(folder: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the configuration and the tensors of an adapter."""
    from safetensors.torch import load_file

    with open(os.path.join(folder, CONFIG), encoding="utf-8") as file:
        config = json.load(file)
    return config, load_file(os.path.join(folder, WEIGHTS))


def write_variant(adapter: str, folder: str, seed: int) -> None:
    """Write an adapter with the configuration and shapes of another, and other values.

    Each tensor keeps its scale, or gets a hundredth of the largest: a new adapter has zeros in lora_B, and would do nothing.
    """
    import torch
    from safetensors.torch import save_file

    _, tensors = read_adapter(adapter)
    generator = torch.Generator().manual_seed(seed)
    scales = {name: float(tensor.float().std(correction=0)) for name, tensor in tensors.items()}
    floor = 0.01 * max(scales.values(), default=1.0)
    varied = {}
    for name, tensor in tensors.items():
        noise = torch.randn(tensor.shape, generator=generator)
        varied[name] = (noise * max(scales[name], floor)).to(tensor.dtype).contiguous()
    os.makedirs(folder)
    shutil.copyfile(os.path.join(adapter, CONFIG), os.path.join(folder, CONFIG))
    save_file(varied, os.path.join(folder, WEIGHTS), metadata={"format": "pt"})


def write_merged(checkpoint: str, adapter: str, folder: str, nudge: bool) -> None:
    """Write a checkpoint with an adapter merged into its weights; nudge: move every matrix by one unit in its last place too.

    Raises ValueError for an adapter that changes anything other than matrices of the checkpoint.
    """
    import torch
    from safetensors import safe_open
    from safetensors.torch import save_file

    config, tensors = read_adapter(adapter)
    updates = _weight_updates(config, tensors)
    os.makedirs(folder)
    for file in sorted(os.listdir(checkpoint)):
        source, target = os.path.join(checkpoint, file), os.path.join(folder, file)
        if not file.endswith(".safetensors"):
            if os.path.isfile(source) and file.endswith((".json", ".txt", ".model", ".jinja")):
                shutil.copyfile(source, target)
            continue
        merged: dict[str, Any] = {}
        with safe_open(source, "pt") as shard:
            for name in sorted(shard.keys()):
                tensor = shard.get_tensor(name)
                if name in updates:
                    tensor = (tensor.double() + updates.pop(name)).to(tensor.dtype)
                if nudge and tensor.ndim > 1 and tensor.is_floating_point():
                    signs = (
                        torch.randint(0, 2, tensor.shape, generator=torch.Generator().manual_seed(len(merged))) * 2 - 1
                    )
                    tensor = (tensor.double() * (1 + signs * torch.finfo(tensor.dtype).eps)).to(tensor.dtype)
                merged[name] = tensor.contiguous()
        save_file(merged, target, metadata={"format": "pt"})
    if updates:
        raise ValueError(f"the adapter changes {min(updates)}, which the checkpoint does not have")


def _weight_updates(config: dict[str, Any], tensors: dict[str, Any]) -> dict[str, Any]:
    """Return name of a weight → the adapter's update of it, in float64."""
    if config.get("use_dora") or config.get("modules_to_save"):
        raise ValueError("the adapter is not plain LoRA (use_dora, modules_to_save): it cannot be merged here")
    pairs: dict[str, dict[str, Any]] = {}
    for name, tensor in tensors.items():
        match = PAIR.fullmatch(name)
        if match is None:
            raise ValueError(f"the adapter has {name}, which is no half of a LoRA pair")
        pairs.setdefault(match["module"].removeprefix(PREFIX), {})[match["side"]] = tensor.double()
    return {f"{module}.weight": _scale(config, module) * (pair["B"] @ pair["A"]) for module, pair in pairs.items()}


def _scale(config: dict[str, Any], module: str) -> float:
    rank = _by_pattern(config.get("rank_pattern"), module, config["r"])
    alpha = _by_pattern(config.get("alpha_pattern"), module, config.get("lora_alpha", config["r"]))
    return float(alpha) / (math.sqrt(rank) if config.get("use_rslora") else float(rank))


def _by_pattern(patterns: dict[str, Any] | None, module: str, default: Any) -> Any:
    """Return the value of the first pattern that is the end of the module's name, as PEFT looks them up."""
    return next((value for key, value in (patterns or {}).items() if re.match(rf"(.*\.)?({key})$", module)), default)
