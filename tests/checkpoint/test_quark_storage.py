"""What Quark stores beside a weight, by what its settings say: shapes as Quark 0.13 wrote them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import ckptcheck
from tests.checkpoint.test_rare_quantizations import CONFIG, LINEAR
from tests.factories.released_structures import Entry, Structure, write_checkpoint

FP8 = {"dtype": "fp8_e4m3", "qscheme": "per_tensor", "is_dynamic": False}
SETTINGS: dict[str, dict[str, Any]] = {
    "fp8": {"weight": FP8, "input_tensors": FP8},
    "fp8 for each row": {
        "weight": {**FP8, "qscheme": "per_channel"}, "input_tensors": {**FP8, "qscheme": "per_channel", "is_dynamic": True},
    },
    "int4": {"weight": {"dtype": "int4", "qscheme": "per_group", "group_size": 32, "symmetric": True}},
    "mxfp4": {"weight": {"dtype": "fp4", "qscheme": "per_group", "group_size": 32, "scale_format": "e8m0", "symmetric": None}},
}  # fmt: skip
STORED: dict[str, dict[str, Entry]] = {
    "fp8": {"weight": ("F8_E4M3", (64, 64)), "weight_scale": ("BF16", ()), "input_scale": ("BF16", ())},
    "fp8 for each row": {"weight": ("F8_E4M3", (64, 64)), "weight_scale": ("BF16", (64,))},
    "int4": {"weight": ("I32", (64, 8)), "weight_scale": ("BF16", (2, 64)), "weight_zero_point": ("I32", (2, 8))},
    "mxfp4": {"weight": ("U8", (64, 32)), "weight_scale": ("U8", (64, 2))},
}  # fmt: skip
DAMAGES: list[tuple[str, str, Entry | None, str]] = [
    ("fp8", "input_scale", None, "QNT001"),
    ("fp8", "weight_scale", ("BF16", (1, 1)), "QNT001"),
    ("fp8 for each row", "weight_scale", ("BF16", (32,)), "QNT001"),
    ("int4", "weight_zero_point", None, "QNT001"),
    ("int4", "weight_zero_point", ("I32", (8, 2)), "QNT001"),
    ("int4", "weight_scale", ("BF16", (64, 2)), "QNT001"),
    ("int4", "weight", ("I32", (32, 8)), "QNT001"),
    ("mxfp4", "weight_scale", ("BF16", (64, 2)), "QNT001"),
    ("mxfp4", "weight_scale", ("U8", (2, 64)), "QNT001"),
    ("mxfp4", "weight", ("U8", (64, 16)), "QNT001"),
    ("mxfp4", "weight", ("U8", (2048,)), "QNT001"),
]


def find_codes(kind: str, folder: Path, role: str = "", entry: Entry | None = None) -> set[str]:
    """Scan a model whose layers are stored as Quark stores them, but for one tensor of one module."""
    entries: dict[str, Entry] = {
        f"model.layers.{layer}.{module}.{part}": stored
        for layer in range(3)
        for module in LINEAR
        for part, stored in STORED[kind].items()
    }
    if role:
        del entries[f"model.layers.1.self_attn.q_proj.{role}"]
        entries |= {f"model.layers.1.self_attn.q_proj.{role}": entry} if entry is not None else {}
    settings = {
        "quant_method": "quark", "exclude": ["lm_head"], "layer_quant_config": {}, "layer_type_quant_config": {},
        "export": {"kv_cache_group": [], "pack_method": "reorder"},
        "global_quant_config": SETTINGS[kind],
    }  # fmt: skip
    write_checkpoint(Structure("made/up", "", {**CONFIG, "quantization_config": settings}, []), folder, entries)
    found = ckptcheck.scan(folder, headers_only=True, select=["QNT"]).findings
    return {one.code for one in found if one.severity == "error"}


@pytest.mark.parametrize("kind", STORED)
def test_what_quark_writes_is_sound(kind: str, tmp_path: Path) -> None:
    assert find_codes(kind, tmp_path) == set()


@pytest.mark.parametrize(("kind", "role", "entry", "code"), DAMAGES)
def test_one_damaged_tensor_is_told(kind: str, role: str, entry: Entry | None, code: str, tmp_path: Path) -> None:
    assert code in find_codes(kind, tmp_path, role, entry)
