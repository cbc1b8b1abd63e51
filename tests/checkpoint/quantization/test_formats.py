"""The tables of formats against what compressed-tensors' own compressors write, for every scheme it has."""

from __future__ import annotations

from typing import Any

import pytest

from ckptcheck.checkpoint.quantization.declarations import Declaration
from ckptcheck.checkpoint.quantization.faults import find_format_faults
from ckptcheck.checkpoint.quantization.quantization import Quantization
from ckptcheck.checkpoint.quantization.storage import group_by_storage
from ckptcheck.checkpoint.tensor import Tensor
from tests.checkpoint.quantization import real_formats

pytest.importorskip("compressed_tensors", reason="pip install 'ckptcheck[fixtures]'")
DTYPES = {
    "torch.bfloat16": "BF16", "torch.float32": "F32", "torch.int32": "I32", "torch.int64": "I64", "torch.int8": "I8",
    "torch.uint8": "U8", "torch.float8_e4m3fn": "F8_E4M3",
}  # fmt: skip
SCHEMES = [
    pytest.param(form, group, rows, columns, id=f"{form}-{number}-{rows}x{columns}")
    for number, (form, group) in enumerate(real_formats.schemes())
    for rows, columns in ((64, 128), (48, 96))
]


def header(form: str, group: dict[str, Any], rows: int, columns: int) -> dict[str, Tensor]:
    """What the header of a file says of one real module."""
    tensors, _ = real_formats.compressed(form, group, rows, columns)
    return {name: Tensor(DTYPES[str(value.dtype)], tuple(value.shape), (0, 0)) for name, value in tensors.items()}


def faults(form: str, group: dict[str, Any], tensors: dict[str, Tensor]) -> list[tuple[str, str]]:
    config = {"format": form, "config_groups": {"group_0": {"targets": ["Linear"], **group}}}
    declared = Declaration("config.json", "quantization_config", config, "compressed-tensors")
    stored = group_by_storage({f"model.layers.0.mlp.up_proj.{name}": tensor for name, tensor in tensors.items()})
    return [(fault.kind, fault.role) for fault, _, _ in find_format_faults(Quantization((declared,), stored))]


@pytest.mark.parametrize(("form", "group", "rows", "columns"), SCHEMES)
def test_what_the_compressor_writes_is_what_the_table_demands(
    form: str, group: dict[str, Any], rows: int, columns: int
) -> None:
    real = header(form, group, rows, columns)
    assert faults(form, group, real) == []
    weight = next(name for name in real if name in ("weight", "weight_packed"))
    for name, tensor in real.items():
        rest = {other: value for other, value in real.items() if other != name}
        if name == weight:
            assert {kind for kind, _ in faults(form, group, rest)} == {"weightless"}
            continue
        assert faults(form, group, rest) == [("missing", name)]
        assert faults(form, group, {**real, name: Tensor("BOOL", tensor.shape, (0, 0))}) == [("dtype", name)]
        if name != "weight_shape":
            longer = (*tensor.shape[:-1], tensor.shape[-1] + 3)
            assert faults(form, group, {**real, name: Tensor(tensor.dtype, longer, (0, 0))}) == [("shape", name)]
    surplus = {**real, "weight_g_idx": Tensor("I32", (columns,), (0, 0))}
    assert faults(form, group, surplus) == [("surplus", "weight_g_idx")]
