"""Released models as a tool would quantize them: what is new is the quantization's, and no rule takes it for damage."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

import ckptcheck
from tests.factories.released_structures import Entry, Structure, list_structures, load_structure, write_checkpoint
from tests.paths import ROOT

MOST_TENSORS = 4000
"""Larger models have more of the same layers."""
ENGINES = {"QNT020", "QNT027"}
"""What an engine makes of modules that it builds otherwise than the checkpoint stores them: held against real engines elsewhere."""
NUMBER = re.compile(r"(?<![^.])\d+(?![^.])")
BUILT: dict[str, Any] = json.loads((ROOT / "ckptcheck" / "consumers" / "transformers.json").read_text())[
    "architectures"
]
"""Architecture → the modules that transformers builds, numbers as ``{}``."""


def list_matrices(structure: Structure) -> list[str]:
    """Return the linear modules of the language model, but for routers and the head: what tools quantize."""
    modules = BUILT[structure.config["architectures"][0]]["modules"]
    found = []
    for name, (_, shape) in structure.entries.items():
        module, _, last = name.rpartition(".")
        template = NUMBER.sub("{}", module)
        role, _, never = (modules.get(template) or modules.get(f"model.{template}") or ("O", "", True))[:3]
        is_matrix = last == "weight" and len(shape) == 2 and all(size % 128 == 0 for size in shape)
        if is_matrix and role == "L" and not never and not re.search(r"lm_head|gate$|router|visi|image|audio", module):
            found.append(module)
    return found


def quantize(structure: Structure, method: str) -> tuple[dict[str, Entry], dict[str, Any]]:
    """Return the tensors of the model in 4 bits (gptq) or in FP8 with scales of blocks (fp8), and the config for them."""
    entries = dict(structure.entries)
    matrices = list_matrices(structure)
    for module in matrices:
        _, (rows, columns) = entries.pop(f"{module}.weight")
        if method == "fp8":
            entries[f"{module}.weight"] = ("F8_E4M3", (rows, columns))
            entries[f"{module}.weight_scale_inv"] = ("F32", (rows // 128, columns // 128))
        else:
            entries[f"{module}.qweight"] = ("I32", (columns // 8, rows))
            entries[f"{module}.qzeros"] = ("I32", (columns // 128, rows // 8))
            entries[f"{module}.scales"] = ("F16", (columns // 128, rows))
            entries[f"{module}.g_idx"] = ("I32", (columns,))
    plain = [
        name.removesuffix(".weight")
        for name, (_, shape) in entries.items()
        if name.endswith(".weight") and len(shape) > 1
    ]
    if method == "fp8":
        return entries, {
            "quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128],
            "modules_to_not_convert": [name for name in plain if name not in matrices],
        }  # fmt: skip
    return entries, {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False, "sym": True}


def list_told(folder: Path) -> set[str]:
    findings = ckptcheck.scan(folder, headers_only=True).findings
    return {f"{one.code} {one.message}" for one in findings if one.severity in ("error", "warning")}


@pytest.mark.parametrize("method", ["gptq", "fp8"])
@pytest.mark.slow
def test_a_quantized_release_has_no_new_error(method: str, tmp_path: Path) -> None:
    quantized = 0
    for name in list_structures():
        structure = load_structure(name)
        config = structure.config
        is_plain = "quantization_config" not in config and "hf_quant_config.json" not in structure.files
        known = (config.get("architectures") or [""])[0] in BUILT
        if not (known and is_plain and len(structure.entries) <= MOST_TENSORS and list_matrices(structure)):
            continue
        entries, settings = quantize(structure, method)
        # GPTQ's kernels compute in float16, and its scales are stored so
        entries = {name: ("F16" if dtype == "BF16" else dtype, shape) for name, (dtype, shape) in entries.items()}
        changed = {"torch_dtype": "float16", "dtype": "float16"}
        kept = {key: changed.get(key, value) for key, value in config.items()}
        packed = Structure(name, "", {**kept, "quantization_config": settings}, [], structure.shards, structure.files)
        sound = list_told(write_checkpoint(structure, tmp_path / f"{name}-sound"))
        told = list_told(write_checkpoint(packed, tmp_path / name, entries)) - sound
        assert [text for text in sorted(told) if text.split()[0] not in ENGINES] == [], name
        quantized += 1
    assert quantized >= 40
