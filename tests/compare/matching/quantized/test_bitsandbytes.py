"""Weights that bitsandbytes itself stored, against the dense ones they were made of (fixtures/write_bitsandbytes.py)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from packers import bf16, from_bf16
from write_bitsandbytes import FORMS, SHAPE, dense

from ckptcheck.compare.matching.comparison import Comparison
from ckptcheck.compare.matching.open_side import open_side
from ckptcheck.compare.matching.tensor_files import TensorFiles
from ckptcheck.linter import rule_loader
from ckptcheck.linter.report import Report
from ckptcheck.linter.runner import run_rules
from tests.factories.comparison_cases import read_bytes, read_header, write_bytes
from tests.paths import FIXTURES

RULES = [rule for rule in rule_loader.load_rules() if rule.on == "comparison"]
NAME = "model.layers.0.mlp.up_proj"
ALL = [*FORMS, "int8"]
Tensors = dict[str, tuple[str, bytes]]
Shapes = dict[str, tuple[int, ...]]


def folder(path: Path, tensors: Tensors, shapes: Shapes, quantization: dict[str, Any] | None = None) -> Path:
    path.mkdir()
    write_bytes(
        path / "model.safetensors",
        {f"{NAME}.{name}": value for name, value in tensors.items()},
        {f"{NAME}.{name}": shape for name, shape in shapes.items()},
    )
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "dtype": "bfloat16"}
    (path / "config.json").write_text(
        json.dumps(config | ({"quantization_config": quantization} if quantization else {}))
    )
    return path


def of_library(form: str) -> tuple[Tensors, Shapes, bytes]:
    """What the library stored, and the bf16 numbers that it makes of it."""
    path = FIXTURES / "bnb" / f"{form}.safetensors"
    tensors = read_bytes(path)
    _, numbers = tensors.pop("dequantized")
    return tensors, {name: tuple(read_header(path)[name]["shape"]) for name in tensors}, numbers


def packed_folder(path: Path, form: str, **changed: tuple[str, bytes]) -> Path:
    tensors, shapes, _ = of_library(form)
    declared = {"quant_method": "bitsandbytes", "load_in_4bit": form != "int8", "load_in_8bit": form == "int8"}
    return folder(path, tensors | changed, shapes, declared)


def dense_folder(path: Path, numbers: bytes | None = None) -> Path:
    raw = numbers if numbers is not None else bf16(dense()).tobytes()
    return folder(path, {"weight": ("BF16", raw)}, {"weight": SHAPE})


def diff(first: Path, second: Path) -> Report:
    return run_rules(Comparison(open_side(str(first)), open_side(str(second))), RULES)


@pytest.mark.parametrize("form", ALL)
def test_what_the_library_stored_is_within_half_a_gap(form: str, tmp_path: Path) -> None:
    first, second = dense_folder(tmp_path / "dense"), packed_folder(tmp_path / "packed", form)
    report = diff(first, second)
    assert report.verdict == "clean", [finding.message for finding in report.findings]
    near = Comparison(open_side(str(first)), open_side(str(second))).value_differences.quantized[0][1]
    assert (near.elements, near.beyond) == (SHAPE[0] * SHAPE[1], 0)
    assert 0.2 < near.rms < 0.5


@pytest.mark.parametrize("form", ALL)
def test_the_numbers_are_the_librarys(form: str, tmp_path: Path) -> None:
    packed, numbers = packed_folder(tmp_path / "packed", form), of_library(form)[2]
    side = open_side(str(packed))
    wanted = from_bf16(np.frombuffer(numbers, np.uint16)).reshape(SHAPE)
    with TensorFiles(side.source) as files:
        found = side.quantized[f"{NAME}.weight"].dequantize_rows(files, 0, SHAPE[0]).values
        part = side.quantized[f"{NAME}.weight"].dequantize_rows(files, 3, 64).values
    np.testing.assert_array_equal(part, found[3:64])
    np.testing.assert_array_equal(from_bf16(bf16(found)), wanted)
    assert diff(packed, dense_folder(tmp_path / "exact", numbers)).verdict == "clean"
    report = diff(packed, dense_folder(tmp_path / "dense"))  # the weight before it was quantized
    assert [finding.code for finding in report.findings] == ["CMP007"]


@pytest.mark.parametrize("form", ALL)
def test_one_wrong_number_is_seen(form: str, tmp_path: Path) -> None:
    dtype, raw = of_library(form)[0]["weight"]
    code = raw[1000]
    other = (code + 2) % 256 if form == "int8" else code ^ 0x20  # of the first of two
    changed = {"weight": (dtype, raw[:1000] + bytes([other]) + raw[1001:])}
    report = diff(dense_folder(tmp_path / "dense"), packed_folder(tmp_path / "packed", form, **changed))
    assert [finding.code for finding in report.findings] == ["CMP009"]
    assert "1 of 17,255 numbers are farther than rounding explains" in report.findings[0].message


@pytest.mark.parametrize(
    ("form", "name", "size"),
    [
        ("nf4", "weight.absmax", 4),
        ("fp4-double", "weight.absmax", 1),
        ("nf4-double", "weight.nested_absmax", 4),
        ("int8", "SCB", 4),
    ],
)
def test_scales_of_the_neighbours_are_seen(form: str, name: str, size: int, tmp_path: Path) -> None:
    dtype, raw = of_library(form)[0][name]
    changed = {name: (dtype, raw[size:] + raw[:size])}
    report = diff(dense_folder(tmp_path / "dense"), packed_folder(tmp_path / "packed", form, **changed))
    assert {finding.code for finding in report.findings} <= {"CMP007", "CMP009"}
    assert report.findings


@pytest.mark.parametrize(
    "state",
    [
        b"", b"[]", b"{", b"[" * 60, b'{"quant_type": "nf4"}', b'{"quant_type": "fp4", "blocksize": 64, "shape": [119, 145]}',
        b'{"quant_type": "nf4", "blocksize": 0, "shape": [119, 145]}',
        b'{"quant_type": "nf4", "blocksize": 64, "shape": [119, 999]}',
        b'{"quant_type": "nf4", "blocksize": 64, "shape": 7}', b'{"quant_type": "nf4", "blocksize": true, "shape": [-119, -145]}',
    ],
)  # fmt: skip
def test_a_state_that_does_not_fit_is_not_compared(state: bytes, tmp_path: Path) -> None:
    changed = {"weight.quant_state.bitsandbytes__nf4": ("U8", state.ljust(80))}
    report = diff(dense_folder(tmp_path / "dense"), packed_folder(tmp_path / "packed", "nf4", **changed))
    assert report.exit_code("error") == 2
    assert any(
        "quantized by bitsandbytes, weight U8, a format that diff does not dequantize" in why
        for _, why in report.crashed
    )
