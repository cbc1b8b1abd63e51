"""The fixtures' packers against compressed-tensors' own: what one packs, the other unpacks to the same numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import packers
import pytest

from tests.checkpoint.quantization import real_formats

pytest.importorskip("compressed_tensors", reason="pip install 'ckptcheck[fixtures]'")
WEIGHT = np.random.default_rng(7).standard_normal((64, 128), np.float32) * 0.05
TORCH = {
    "BF16": "bfloat16",
    "F8_E4M3": "float8_e4m3fn",
    "I32": "int32",
    "I64": "int64",
    "F32": "float32",
    "U8": "uint8",
}


def close(values: np.ndarray, bits: int) -> bool:
    """Within the error that rounding to so many bits makes, per column at most one step of the coarsest group."""
    return float(np.abs(values - WEIGHT).max()) < float(np.abs(WEIGHT).max()) * {2: 1.1, 3: 0.4, 4: 0.2, 8: 0.07}[bits]


def decompressed(form: str, group: dict[str, Any], stored: packers.Stored) -> np.ndarray:
    import torch
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import QuantizationScheme

    state = {
        name: torch.frombuffer(
            bytearray(np.ascontiguousarray(value).tobytes()), dtype=getattr(torch, TORCH[dtype])
        ).reshape(np.shape(value))
        for name, (dtype, value) in stored.items()
    }
    scheme = QuantizationScheme.model_validate({"targets": ["Linear"], **group})
    compressor = BaseCompressor.get_value_from_registry(form)
    values: np.ndarray = compressor.decompress(state, scheme)["weight"].float().numpy()
    return values


@pytest.mark.parametrize("bits", [3, 4, 8])
@pytest.mark.parametrize("symmetric", [True, False])
def test_packed_integers(bits: int, symmetric: bool) -> None:
    stored = packers.pack_quantized(WEIGHT, bits, 32, symmetric=symmetric)
    own = packers.dequantized({name: value for name, (_, value) in stored.items()}, "pack-quantized", bits=bits)
    group = {
        "weights": {"num_bits": bits, "type": "int", "symmetric": symmetric, "strategy": "group", "group_size": 32}
    }
    assert close(own, bits)
    np.testing.assert_allclose(
        decompressed("pack-quantized", group, stored), own, rtol=0.005
    )  # the library rounds to bf16


@pytest.mark.parametrize("calibrated", [True, False])
def test_nvfp4(calibrated: bool) -> None:
    stored = packers.nvfp4(WEIGHT, modelopt=False, calibrated=calibrated)
    own = packers.dequantized({name: value for name, (_, value) in stored.items()}, "nvfp4")
    modelopt = packers.nvfp4(WEIGHT, modelopt=True)
    assert close(own, 4)
    np.testing.assert_allclose(
        packers.dequantized({name: np.asarray(value) for name, (_, value) in modelopt.items()}, "nvfp4"), own, rtol=1e-5
    )
    activations = {"input_activations": {**real_formats.NVFP4, "dynamic": "local"}} if calibrated else {}
    group = {"weights": real_formats.NVFP4, **activations}
    np.testing.assert_allclose(decompressed("nvfp4-pack-quantized", group, stored), own, rtol=0.01)


def test_mxfp4() -> None:
    packed, exponents = packers.mxfp4(WEIGHT)
    stored: packers.Stored = {"weight_packed": ("U8", packed), "weight_scale": ("U8", exponents)}
    own = packers.dequantized({name: value for name, (_, value) in stored.items()}, "mxfp4")
    assert close(own, 3)  # powers of two leave up to a bit of the range unused
    group = {"weights": {**real_formats.MX, "num_bits": 4}}
    np.testing.assert_allclose(decompressed("mxfp4-pack-quantized", group, stored), own, rtol=1e-6)


@pytest.mark.parametrize("strategy", ["tensor", "channel"])
def test_fp8(strategy: str) -> None:
    stored = packers.fp8(WEIGHT, strategy, dtype="BF16")
    own = packers.dequantized({name: value for name, (_, value) in stored.items()}, "fp8")
    assert close(own, 8)
    group = {
        "weights": {"num_bits": 8, "type": "float", "strategy": strategy}, "input_activations": real_formats.FP8_TOKENS
    }  # fmt: skip
    np.testing.assert_allclose(decompressed("float-quantized", group, stored), own, rtol=0.005)


def test_fp8_in_blocks() -> None:
    stored = packers.fp8_block(WEIGHT, (48, 48))
    assert stored["weight_scale_inv"][1].shape == (2, 3)
    assert close(packers.dequantized({name: value for name, (_, value) in stored.items()}, "fp8-block", group=48), 8)


@pytest.mark.parametrize(("form", "bits"), [("gptq", 4), ("gptq", 8), ("awq", 4)])
def test_gptq_and_awq(form: str, bits: int) -> None:
    stored = packers.gptq(WEIGHT, bits, 32, symmetric=False) if form == "gptq" else packers.awq(WEIGHT, 32)
    assert close(packers.dequantized({name: value for name, (_, value) in stored.items()}, form, bits=bits), bits)


def test_awq_unpacks_as_the_converter_of_compressed_tensors_does() -> None:
    import torch
    from compressed_tensors.entrypoints.convert.converters.autoawq import AutoAWQConverter

    stored = {name: value for name, (_, value) in packers.awq(WEIGHT, 32).items()}
    words = [torch.from_numpy(stored[name].copy()) for name in ("qweight", "qzeros")]
    codes, zeros = AutoAWQConverter.reverse_awq_order(*AutoAWQConverter.unpack_awq(*words, 4), 4)
    theirs = ((codes & 15).numpy().astype(int) - (zeros & 15).numpy().astype(int).repeat(32, 0)) * (
        stored["scales"].astype(np.float32).repeat(32, 0)
    )
    np.testing.assert_allclose(packers.dequantized(stored, "awq"), theirs.T, rtol=1e-6)
    assert close(theirs.T, 4)


def test_every_fp8_number_is_what_torch_says() -> None:
    import torch

    patterns = np.arange(256, dtype=np.uint8)
    theirs = torch.from_numpy(patterns.copy()).view(torch.float8_e4m3fn).float().numpy()
    np.testing.assert_array_equal(packers.from_e4m3(patterns), theirs)
    values = np.random.default_rng(3).standard_normal(4096, np.float32) * 100
    rounded = torch.from_numpy(values.clip(-448, 448)).to(torch.float8_e4m3fn).float().numpy()
    assert np.abs(packers.from_e4m3(packers.e4m3(values)) - rounded).max() == 0
