"""Quantized weights against the dense ones they were made of, by compressed-tensors' own compressors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ckptcheck.compare.matching.comparison import Comparison
from ckptcheck.compare.matching.open_side import open_side
from ckptcheck.linter import rule_loader
from ckptcheck.linter.report import Report
from ckptcheck.linter.runner import run_rules

pytest.importorskip("compressed_tensors", reason="pip install 'ckptcheck[fixtures]'")
from tests.checkpoint.quantization import real_formats

RULES = [rule for rule in rule_loader.load_rules() if rule.on == "comparison"]
NAME = "model.layers.0.mlp.up_proj"
KNOWN = (
    "pack-quantized", "int-quantized", "float-quantized", "nvfp4-pack-quantized", "mxfp4-pack-quantized", "mxfp8-quantized",
)  # fmt: skip
SCHEMES = [
    pytest.param(form, group, rows, columns, id=f"{form}-{number}-{rows}x{columns}")
    for number, (form, group) in enumerate(real_formats.schemes())
    for rows, columns in ((48, 96),)
]


def folder(path: Path, tensors: dict[str, Any], quantization: dict[str, Any] | None = None) -> Path:
    from safetensors.torch import save_file

    path.mkdir()
    save_file({f"{NAME}.{name}": value.contiguous() for name, value in tensors.items()}, path / "model.safetensors")
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "dtype": "bfloat16"}
    (path / "config.json").write_text(
        json.dumps(config | ({"quantization_config": quantization} if quantization else {}))
    )
    return path


def sides(
    tmp_path: Path, form: str, group: dict[str, Any], rows: int, columns: int, seed: int = 0
) -> tuple[Path, Path, Any]:
    """The dense weight, and what the compressor makes of it."""
    import torch

    tensors, weight = real_formats.compressed(form, group, rows, columns, seed)
    declared = {
        "quant_method": "compressed-tensors",
        "format": form,
        "config_groups": {"group_0": {"targets": ["Linear"], **group}},
    }
    dense = folder(tmp_path / f"dense{seed}", {"weight": weight.to(torch.bfloat16)})
    return dense, folder(tmp_path / f"packed{seed}", tensors, declared), tensors


def diff(first: Path, second: Path) -> Report:
    return run_rules(Comparison(open_side(str(first)), open_side(str(second))), RULES)


@pytest.mark.parametrize(("form", "group", "rows", "columns"), SCHEMES)
def test_real_compressors_are_within_half_a_step(
    form: str, group: dict[str, Any], rows: int, columns: int, tmp_path: Path
) -> None:
    dense, packed, _ = sides(tmp_path, form, group, rows, columns)
    report = diff(dense, packed)
    assert not report.findings
    assert not diff(packed, packed).findings
    if form in KNOWN:
        assert report.verdict == "clean"
        seen = Comparison(open_side(str(dense)), open_side(str(packed))).value_differences.quantized
        assert [near.beyond for _, near, _ in seen] == [0]
        assert seen[0][1].elements == rows * columns
        assert seen[0][1].rms > 0.1  # the numbers were looked at: rounding is never exact
    else:
        assert report.verdict == "incomplete"
        assert "a format that diff does not dequantize" in report.crashed[0][1]


@pytest.mark.parametrize(("form", "group", "rows", "columns"), [case for case in SCHEMES if case.values[0] in KNOWN])
def test_the_numbers_are_those_of_the_decompressor(
    form: str, group: dict[str, Any], rows: int, columns: int, tmp_path: Path
) -> None:
    import numpy as np
    import torch
    from compressed_tensors.compressors import decompress_module
    from compressed_tensors.quantization import QuantizationScheme

    from ckptcheck.compare.matching.tensor_files import TensorFiles

    _, packed, tensors = sides(tmp_path, form, group, rows, columns)
    side = open_side(str(packed))
    with TensorFiles(side.source) as files:
        numbers = side.quantized[f"{NAME}.weight"].dequantize_rows(files, 0, rows).values
    module = torch.nn.Linear(columns, rows, bias=False, dtype=torch.bfloat16)
    del module.weight
    for name, value in tensors.items():
        module.register_parameter(name, torch.nn.Parameter(value, requires_grad=False))
    module.quantization_scheme = QuantizationScheme.model_validate({"targets": ["Linear"], **group, "format": form})
    decompress_module(module)
    np.testing.assert_allclose(numbers, module.weight.float().numpy(), rtol=2**-7, atol=0)


@pytest.mark.parametrize(
    ("form", "group", "rows", "columns"),
    [next(case for case in SCHEMES if case.values[0] == form) for form in KNOWN],
)
def test_scales_of_another_tensor_are_named(
    form: str, group: dict[str, Any], rows: int, columns: int, tmp_path: Path
) -> None:
    dense, _, _ = sides(tmp_path, form, group, rows, columns)
    _, other, _ = sides(tmp_path, form, group, rows, columns, seed=1)
    report = diff(dense, other)
    assert [finding.code for finding in report.findings] == ["CMP007"]
    assert "the quantized weight does not hold the values of the dense one in 1 tensor" in report.findings[0].message


def test_numbers_a_step_off_are_a_warning(tmp_path: Path) -> None:
    group = {"weights": {"num_bits": 8, "type": "int", "strategy": "channel", "symmetric": True}}
    dense, packed, tensors = sides(tmp_path, "int-quantized", group, 64, 128)
    moved = tensors["weight"].clone()
    moved[::8, 0] -= 2 * moved[::8, 0].sign()  # two steps towards zero in an eighth of the rows
    other = folder(
        tmp_path / "other",
        {**tensors, "weight": moved},
        json.loads((packed / "config.json").read_text())["quantization_config"],
    )
    report = diff(dense, other)
    assert [(finding.code, finding.severity) for finding in report.findings] == [("CMP009", "warning")]
    assert report.exit_code("error") == 0


def test_dequantized_again_is_held_to_one_rounding(tmp_path: Path) -> None:
    import torch

    from ckptcheck.compare.matching.tensor_files import TensorFiles

    group = {"weights": {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32, "symmetric": True}}
    dense, packed, _ = sides(tmp_path, "pack-quantized", group, 64, 128)
    side = open_side(str(packed))
    with TensorFiles(side.source) as files:
        numbers = side.quantized[f"{NAME}.weight"].dequantize_rows(files, 0, 64).values
    exact = folder(tmp_path / "exact", {"weight": torch.from_numpy(numbers.copy()).to(torch.bfloat16)})
    assert diff(packed, exact).verdict == "clean"
    report = diff(packed, dense)  # the weight before quantization does not equal the dequantized one
    assert [finding.code for finding in report.findings] == ["CMP007"]


@pytest.mark.parametrize("role", ["weight_scale", "weight_zero_point"])
def test_scales_that_do_not_fit_are_not_compared(role: str, tmp_path: Path) -> None:
    group = {"weights": {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32, "symmetric": False}}
    dense, packed, tensors = sides(tmp_path, "pack-quantized", group, 48, 96)
    declared = json.loads((packed / "config.json").read_text())["quantization_config"]
    other = folder(tmp_path / "other", {**tensors, role: tensors[role][:, :1].repeat(1, 5)}, declared)
    report = diff(dense, other)
    assert report.exit_code("error") == 2
    assert not any("Error" in why for _, why in report.crashed)


def test_blocks_of_deepseek(tmp_path: Path) -> None:
    import torch

    weight = (torch.randn(50, 70, generator=torch.Generator().manual_seed(0)) / 8).to(torch.bfloat16)
    padded = torch.nn.functional.pad(weight.float(), (0, -70 % 32, 0, -50 % 16)).reshape(4, 16, 3, 32)
    scale = padded.abs().amax((1, 3)) / 448
    packed = (padded / scale[:, None, :, None]).to(torch.float8_e4m3fn).reshape(64, 96)[:50, :70]
    declared = {"quant_method": "fp8", "weight_block_size": [16, 32], "activation_scheme": "dynamic"}
    dense = folder(tmp_path / "dense", {"weight": weight})
    good = folder(tmp_path / "good", {"weight": packed, "weight_scale_inv": scale}, declared)
    assert diff(dense, good).verdict == "clean"
    turned = folder(tmp_path / "turned", {"weight": packed, "weight_scale_inv": scale.flip(0)}, declared)
    assert {finding.code for finding in diff(dense, turned).findings} <= {"CMP007", "CMP009"}
    assert diff(dense, turned).findings
    scaled = folder(tmp_path / "scaled", {"weight": packed, "weight_scale_inv": 1 / scale}, declared)
    assert [finding.code for finding in diff(dense, scaled).findings] == ["CMP007"]


def gptq_sides(
    tmp_path: Path, bits: int, *, symmetric: bool, form: str = "gptq", order: bool = False
) -> tuple[Path, Path]:
    """A dense weight and its GPTQ form, written by the fixtures' packer. order: inputs belong to groups in another order."""
    import numpy as np
    import torch
    from packers import gptq

    random = np.random.default_rng(0)
    weight = torch.from_numpy(random.standard_normal((48, 96), dtype=np.float32) / 8).to(torch.bfloat16)
    moved = random.permutation(96) if order else np.arange(96)
    arrays = {
        name: array
        for name, (_, array) in gptq(weight.float().numpy()[:, moved], bits, 32, symmetric=symmetric).items()
    }
    if order:
        codes = _codes(arrays["qweight"], bits)
        back = np.argsort(moved)
        arrays["qweight"] = _packed_codes(codes[back], bits)
        arrays["g_idx"] = arrays["g_idx"][back]
    if form == "gptq_v2":
        arrays["qzeros"] = _packed_codes((_codes(arrays["qzeros"].T, bits) + 1).T % 2**bits, bits, axis=1)
    tensors = {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in arrays.items()}
    declared = {"quant_method": "gptq", "bits": bits, "group_size": 32, "sym": symmetric, "desc_act": order}
    dense = folder(tmp_path / "dense", {"weight": weight})
    return dense, folder(tmp_path / "gptq", tensors, declared | {"checkpoint_format": form})


def _codes(words: Any, bits: int) -> Any:
    """Take numbers out of words that hold them one below the other, lowest first: shifts, and no stream of bits."""
    import numpy as np

    shifts = np.arange(32 // bits, dtype=np.uint32) * np.uint32(bits)
    fields = words.astype(np.uint32)[:, None, :] >> shifts[None, :, None] & np.uint32(2**bits - 1)
    return fields.reshape(-1, words.shape[1]).astype(np.int64)


def _packed_codes(codes: Any, bits: int, axis: int = 0) -> Any:
    import numpy as np

    table = codes if axis == 0 else codes.T
    shifts = np.arange(32 // bits, dtype=np.uint64) * np.uint64(bits)
    words = (table.reshape(-1, 32 // bits, table.shape[1]).astype(np.uint64) << shifts[None, :, None]).sum(1)
    found = words.astype(np.uint32).view(np.int32)
    return found if axis == 0 else np.ascontiguousarray(found.T)


@pytest.mark.parametrize("order", [False, True])
@pytest.mark.parametrize("form", ["gptq", "gptq_v2"])
@pytest.mark.parametrize(("bits", "symmetric"), [(4, True), (4, False), (8, True), (2, False)])
def test_gptq_is_within_half_a_step(bits: int, symmetric: bool, form: str, order: bool, tmp_path: Path) -> None:
    dense, packed = gptq_sides(tmp_path, bits, symmetric=symmetric, form=form, order=order)
    assert diff(dense, packed).verdict == "clean"
    near = Comparison(open_side(str(dense)), open_side(str(packed))).value_differences.quantized[0][1]
    assert (near.elements, near.beyond) == (48 * 96, 0)
    assert near.rms > 0.1


@pytest.mark.parametrize(("said", "code"), [("gptq_v2", "CMP007"), ("gptq", None)])
def test_zero_points_of_the_other_gptq_are_named(said: str, code: str | None, tmp_path: Path) -> None:
    dense, packed = gptq_sides(tmp_path, 4, symmetric=False)
    config = json.loads((packed / "config.json").read_text())
    config["quantization_config"]["checkpoint_format"] = said
    (packed / "config.json").write_text(json.dumps(config))
    assert [finding.code for finding in diff(dense, packed).findings] == ([code] if code else [])


def test_gptq_that_does_not_fit_is_not_compared(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    dense, packed = gptq_sides(tmp_path, 4, symmetric=True)
    tensors = load_file(packed / "model.safetensors")
    tensors[f"{NAME}.g_idx"] = tensors[f"{NAME}.g_idx"][:-1].clone()
    save_file(tensors, packed / "model.safetensors")
    report = diff(dense, packed)
    assert report.exit_code("error") == 2
    assert any(
        "quantized by gptq, qweight I32, a format that diff does not dequantize" in why for _, why in report.crashed
    )


@pytest.mark.parametrize("swapped", [False, True])
def test_awq_is_within_half_a_step(swapped: bool, tmp_path: Path) -> None:
    import numpy as np
    import torch
    from packers import awq

    weight = torch.from_numpy(np.random.default_rng(1).standard_normal((48, 96), dtype=np.float32) / 8).to(
        torch.bfloat16
    )
    tensors = {name: torch.from_numpy(array) for name, (_, array) in awq(weight.float().numpy()).items()}
    if swapped:  # as a packer that does not know the order would leave it
        words = tensors["qweight"].numpy().view(np.uint8)
        tensors["qweight"] = torch.from_numpy((words >> 4 | words << 4).view(np.int32))
    dense = folder(tmp_path / "dense", {"weight": weight})
    declared = {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True, "version": "gemm"}
    report = diff(dense, folder(tmp_path / "awq", tensors, declared))
    assert [finding.code for finding in report.findings] == (["CMP007"] if swapped else [])
    assert report.exit_code("error") == int(swapped)


def test_rows_of_awq_may_begin_within_a_word(tmp_path: Path) -> None:
    import numpy as np
    import torch
    from packers import awq

    from ckptcheck.compare.matching.tensor_files import TensorFiles

    weight = np.random.default_rng(2).standard_normal((48, 96), dtype=np.float32)
    tensors = {name: torch.from_numpy(array) for name, (_, array) in awq(weight).items()}
    declared = {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True, "version": "gemm"}
    side = open_side(str(folder(tmp_path / "awq", tensors, declared)))
    packed = side.quantized[f"{NAME}.weight"]
    with TensorFiles(side.source) as files:
        whole = packed.dequantize_rows(files, 0, 48).values
        part = packed.dequantize_rows(files, 5, 21).values
    np.testing.assert_array_equal(part, whole[5:21])
    assert np.abs(whole - weight).max() < 0.5
