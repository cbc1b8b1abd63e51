"""Quantization configs of released models (tests/data/quantization), each beside one weight as its method stores it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from tests.factories.released_structures import write_shard
from tests.paths import DATA

WEIGHTS = {
    "compressed-tensors": ("weight_packed", "I32"),
    "gptq": ("qweight", "I32"),
    "awq": ("qweight", "I32"),
    "bitsandbytes": ("weight", "U8"),
    "mxfp4": ("weight_blocks", "U8"),
}
"""Method → role and dtype of a quantized weight; FP8 for the others."""


@dataclass(frozen=True)
class ReleasedQuantization:
    """What the files of one release say of its quantization."""

    model: str
    source: str
    """Repository, commit and path of its config.json, or of the folder."""
    config: dict[str, Any]
    """config.json: only what says which model it is, and how it is quantized."""
    files: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Further files: hf_quant_config.json, quantize_config.json."""

    @property
    def method(self) -> str:
        """The method that config.json names, "" where another file says it."""
        settings = (
            self.config.get("quantization_config")
            or self.config.get("text_config", {}).get("quantization_config")
            or {}
        )
        return str(settings.get("quant_method") or "")


@cache
def list_quantizations() -> tuple[ReleasedQuantization, ...]:
    """Read the stored configs, in the order of their models."""
    lines = (DATA / "quantization" / "released.jsonl").read_text(encoding="utf-8").splitlines()
    return tuple(ReleasedQuantization(**json.loads(line)) for line in lines)


def write_quantization(release: ReleasedQuantization, folder: Path) -> Path:
    """Write the configs beside one quantized weight, and return the folder."""
    folder.mkdir(parents=True)
    for file, content in {"config.json": release.config, **release.files}.items():
        (folder / file).write_text(json.dumps(content), encoding="utf-8")
    role, dtype = WEIGHTS.get(release.method, ("weight", "F8_E4M3"))
    write_shard(folder / "model.safetensors", {f"model.layers.0.self_attn.q_proj.{role}": (dtype, (64, 64))})
    return folder
