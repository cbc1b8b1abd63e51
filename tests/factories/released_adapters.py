"""Adapters of others (tests/data/adapters): reads their configs, and writes each as an adapter with tensors of its names.

Where the release's own header was not read, the tensors are those that PEFT saves for such a config: two matrices for each module
that it names, in two layers, with a width of 64.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from tests.factories.released_structures import Entry
from tests.paths import DATA

WIDTH, LAYERS = 64, (0, 1)
ATTENTION, MLP = ("q_proj", "k_proj", "v_proj", "o_proj"), ("gate_proj", "up_proj", "down_proj")
FAMILY = ("q_proj", "v_proj")
"""What PEFT takes for Llama, Qwen, Gemma and Mistral where `target_modules` is null."""


@dataclass(frozen=True)
class ReleasedAdapter:
    """The facts about one adapter: no weights."""

    source: str
    """Repository, commit and path of its adapter_config.json."""
    config: dict[str, Any]
    tensors: dict[str, tuple[str, list[int]]] = field(default_factory=dict)
    """Name → dtype and shape, where its own header was read."""


@cache
def list_adapters() -> tuple[ReleasedAdapter, ...]:
    """Read the stored adapters, in the order of their sources."""
    lines = (DATA / "adapters" / "released.jsonl").read_text(encoding="utf-8").splitlines()
    return tuple(ReleasedAdapter(**json.loads(line)) for line in lines)


def write_adapter(adapter: ReleasedAdapter, folder: Path) -> Path:
    """Write an adapter of zeros, and return its folder."""
    entries: dict[str, Entry] = {name: (dtype, tuple(shape)) for name, (dtype, shape) in adapter.tensors.items()}
    folder.mkdir(parents=True)
    (folder / "adapter_config.json").write_text(json.dumps(adapter.config), encoding="utf-8")
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    reached = 0
    for name, (dtype, shape) in (entries or dict(_iter_entries(adapter.config))).items():
        size = {"F32": 4}.get(dtype, 2)
        for dimension in shape:
            size *= dimension
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [reached, reached + size]}
        reached += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with (folder / "adapter_model.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + reached)
    return folder


def _iter_entries(config: dict[str, Any]) -> Iterator[tuple[str, Entry]]:
    if config.get("peft_type") != "LORA":
        yield "base_model.model.model.layers.0.self_attn.q_proj.weight", ("F32", (WIDTH, WIDTH))
        return
    for module in _iter_modules(config):
        rank = config["r"]
        for pattern, number in (config.get("rank_pattern") or {}).items():
            rank = number if module.endswith(pattern) else rank
        yield f"base_model.model.{module}.lora_A.weight", ("F32", (rank, WIDTH))
        yield f"base_model.model.{module}.lora_B.weight", ("F32", (WIDTH, rank))
        if config.get("use_dora"):
            yield f"base_model.model.{module}.lora_magnitude_vector", ("F32", (WIDTH,))
        if config.get("kasa_config"):
            yield f"base_model.model.{module}.lora_diag", ("F32", (rank,))
        if config.get("velora_config"):
            yield f"base_model.model.{module}.lora_velora_embed", ("F32", (WIDTH,))
        if config.get("monteclora_config"):
            yield f"base_model.model.{module}.lora_monteclora_sampler.std_prior", ("F32", (WIDTH,))
    for name in config.get("modules_to_save") or ():
        yield f"base_model.model.{name}.weight", ("F32", (2, WIDTH))


def _iter_modules(config: dict[str, Any]) -> Iterator[str]:
    targets = config.get("target_modules")
    chosen = config.get("layers_to_transform")
    layers = LAYERS if chosen is None else [chosen] if isinstance(chosen, int) else chosen
    stack = config.get("layers_pattern") or "layers"
    if isinstance(targets, str):
        usual = [f"self_attn.{name}" for name in ATTENTION] + [f"mlp.{name}" for name in MLP]
        names = [
            f"model{inner}.layers.{layer}.{name}"
            for inner in ("", ".language_model")
            for layer in layers
            for name in usual
        ]
        yield from (name for name in names if targets == "all-linear" or re.fullmatch(targets, name))
        return
    for name in targets if targets is not None else FAMILY:
        if ".layers." in name:
            yield name
        else:
            yield from (
                f"model.{stack if isinstance(stack, str) else stack[0]}.{layer}.block.{name}" for layer in layers
            )
