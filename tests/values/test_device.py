"""A scan on a device finds what a scan on the CPU finds; on a GPU if there is one."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ckptcheck.values.device as on_device
from ckptcheck.errors import CkptcheckError
from ckptcheck.values.chunk_scan import scan_chunk
from ckptcheck.values.dtypes import FORMATS
from tests.conftest import needs
from tests.paths import FIXTURES

CHECKPOINT = str(FIXTURES / "checkpoints/tiny-llama")


def devices() -> list[str]:
    needs("torch")
    import torch

    return ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]


@pytest.mark.parametrize("dtype", FORMATS)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_it_equals_the_scan_on_the_cpu(dtype: str, data: st.DataObject) -> None:
    size = 8 * data.draw(st.integers(1, 2000))
    raw = bytearray(np.random.default_rng(data.draw(st.integers(0, 99))).integers(0, 120, size, np.uint8).tobytes())
    for _ in range(data.draw(st.integers(0, 2))):
        begin, length = data.draw(st.integers(0, size - 1)), data.draw(st.integers(1, 3000))
        raw[begin : begin + length] = bytes([data.draw(st.sampled_from((0, 0x7F, 0x80, 0xFF)))]) * len(
            raw[begin : begin + length]
        )
    values = np.frombuffer(bytes(raw), np.uint8)
    for device in devices():
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(on_device, "SMALL", 0)
            patch.setattr(on_device, "PART", 4096)
            assert on_device.DeviceScanner(device)(values, dtype) == scan_chunk(values, dtype)


def test_sound_values_are_not_scanned_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    needs("torch")
    values = np.random.default_rng(0).integers(1, 120, on_device.SMALL * 2, np.uint8)
    expected = scan_chunk(values, "BF16")
    monkeypatch.setattr(on_device, "scan_chunk", lambda *_: pytest.fail("the device was not asked"))
    assert on_device.DeviceScanner("cpu")(values, "BF16") == expected


def scan(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ckptcheck", "scan", CHECKPOINT, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("device", ["cuda:77", "abacus"])
def test_a_missing_device_is_one_sentence(device: str) -> None:
    needs("torch")
    result = scan("--set", f"device={device}")
    assert result.returncode == 2
    assert f"has no device {device}: " in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_without_torch_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(CkptcheckError, match="--set device=cuda needs torch, which is not installed here"):
        on_device.DeviceScanner("cuda")


def test_a_scan_on_a_gpu_finds_the_same() -> None:
    if "cuda" not in devices():
        pytest.skip("torch sees no CUDA device here")
    assert scan("--format", "json").stdout == scan("--format", "json", "--set", "device=cuda").stdout
