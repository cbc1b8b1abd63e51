"""vLLM's own nccl and ipc backends take what they are told. The classes are vLLM's; what needs a GPU is stood in for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import needs_engine

from ckptcheck.host.host import Host

pytestmark = [pytest.mark.engine, pytest.mark.xdist_group("vllm-cpu")]
FAR = Path(__file__).parent.parent / "far"


@pytest.fixture(scope="module")
def forms() -> Iterator[Host]:
    found = needs_engine("vllm")
    with Host(found.python, FAR / "vllm_forms.py", env={**found.variables, "VLLM_LOGGING_LEVEL": "ERROR"}) as running:
        yield running


@pytest.mark.parametrize("plane", ["nccl-id", "ipc"])
@pytest.mark.parametrize("newer", [True, False], ids=["0.32", "0.26"])
def test_weights_arrive_bucket_by_bucket(forms: Host, plane: str, newer: bool) -> None:
    said = forms.call("updated", plane=plane, newer=newer)
    assert said["answer"]["ok"], said["answer"]["message"]
    assert said["same"] == {"a": True, "b": True, "c": True}
    end = ["finish 1", "shutdown"] if newer else ["finish"]
    assert said["calls"] == ["blank True", "init", "start", "update", "update", *end, "blank False"]
    assert said["answer"]["version"] == ("7" if newer else None)
    group = {"rank_offset": 1, "world_size": 3} if plane == "nccl-id" else {}
    assert said["told"] == {**group, "packed": False}


def test_the_second_model_runner_follows_tokens_too(forms: Host) -> None:
    assert forms.call("forced") == [[4, 5, 5], [2, 5, 1], [5, 5, 5], [5, 5, 5]]


def test_a_backend_is_made_where_it_is_needed(forms: Host) -> None:
    assert forms.call("backends") == ["", "ipc", "nccl", "", "gloo"]


def test_it_can_sleep_where_the_device_can(forms: Host) -> None:
    """Last: what stands in for the device stays."""
    cpu, gpu, other = forms.call("started")
    assert cpu == {}
    assert gpu["enable_sleep_mode"]
    assert not other["enable_sleep_mode"]
    assert all(forms.call("knows", names=list(gpu)))
