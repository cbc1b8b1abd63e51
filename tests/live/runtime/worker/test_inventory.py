"""What the worker says of a device's memory, and what it is started with on GPUs."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from ckptcheck.live.runtime.process.gpus import gpu_variables
from ckptcheck.live.runtime.worker.ckptcheck_worker import inventory
from tests.conftest import needs

needs("torch")
import torch  # noqa: E402


def test_the_driver_is_asked_what_sleep_released(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sleep unmaps behind torch's allocator, whose own number stays: what the driver says counts."""
    free = iter((10, 60))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (next(free), 100))
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 90)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid="GPU-1"))
    device = torch.device("cuda", 0)
    assert [inventory.used_memory(device) for _ in range(2)] == [["GPU-1", 90], ["GPU-1", 40]]
    assert inventory.memory_bytes(device)[1] == 90
    cpu = torch.device("cpu")
    assert inventory.used_memory(cpu)[0] == inventory.memory_bytes(cpu)[0]


def test_both_ends_of_a_group_make_the_same_kind_of_it() -> None:
    assert gpu_variables("0,1")["TORCH_DIST_USE_NCCL2"] == gpu_variables(None)["TORCH_DIST_USE_NCCL2"] == "0"
