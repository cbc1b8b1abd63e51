"""What SGLang is asked where it runs on GPUs, in its own request classes; what needs a GPU is stood in for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from ckptcheck.live.runtime.process.client import WorkerClient
from tests.conftest import needs_engine
from tests.paths import DOUBLES

pytestmark = [pytest.mark.engine, pytest.mark.xdist_group("sglang-cpu")]


@pytest.fixture(scope="module")
def forms() -> Iterator[WorkerClient]:
    found = needs_engine("sglang")
    with WorkerClient(found.python, DOUBLES / "sglang_forms.py", env=dict(found.variables)) as running:
        yield running


def asked(forms: WorkerClient, transport: str) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for verb, request in forms.call("updated", transport=transport):
        found.setdefault(verb, []).append(request)
    return found


def test_an_nccl_group_is_made_and_left_around_the_buckets(forms: WorkerClient) -> None:
    said = asked(forms, "nccl")
    assert [*said] == [
        "init_weights_update_group",
        "begin_weight_update",
        "update_weights_from_distributed",
        "end_weight_update",
        "destroy_weights_update_group",
    ]
    place = {"master_address": "127.0.0.1", "master_port": 5, "rank_offset": 1, "world_size": 3}
    assert {**place, "group_name": "sync-1", "backend": "nccl"}.items() <= said["init_weights_update_group"][0].items()
    first, second = said["update_weights_from_distributed"]
    assert {"names": ["a"], "dtypes": ["float32"], "shapes": [[2, 3]], "flush_cache": False}.items() <= first.items()
    assert {
        "names": ["b"],
        "dtypes": ["bfloat16"],
        "flush_cache": True,
        "weight_version": "4",
    }.items() <= second.items()


def test_tensors_are_put_on_the_gpu_and_every_rank_gets_its_own_handle(forms: WorkerClient) -> None:
    first, second = asked(forms, "tensor")["update_weights_from_tensor"]
    assert first["heard"] == [[["a", [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]]]] * 2
    assert second["heard"] == [[["b", [1.0] * 4]]] * 2
    assert second["weight_version"] == "4"
    assert forms.call("notes") == ["placed", "collected"] * 2


@pytest.mark.parametrize("transport", ["tensor", "flattened_bucket", "nccl"])
def test_nothing_is_sent_where_the_session_is_refused(forms: WorkerClient, transport: str) -> None:
    ok, message, requests = forms.call("refused", transport=transport)
    assert (ok, message) == (False, "a session is open")
    assert [name for name in requests if "group" not in name] == ["begin_weight_update"]


def test_a_bucket_is_flat_on_the_gpu(forms: WorkerClient) -> None:
    first, second = asked(forms, "flattened_bucket")["update_weights_from_tensor"]
    assert [first["heard"], second["heard"]] == [[[24, ["a"]]] * 2, [[8, ["b"]]] * 2]
    assert first["load_format"] == "flattened_bucket"


def test_float32_on_a_gpu_gets_an_attention_that_takes_it(forms: WorkerClient) -> None:
    backends = [
        forms.call("started", saver=False, dtype=dtype).get("attention_backend") for dtype in ("float32", "bfloat16")
    ]
    assert backends == ["torch_native", None], "SGLang's own choice takes 16-bit numbers only"


def test_it_can_sleep_where_the_package_for_it_is(forms: WorkerClient) -> None:
    names = ("enable_memory_saver", "enable_weights_cpu_backup")
    for saver in (True, False):
        given = forms.call("started", saver=saver)
        assert [given[name] for name in names] == [saver, saver]
    assert all(forms.call("knows", names=list(given)))


def test_n_grams_propose_tokens_on_gpus_alone(forms: WorkerClient) -> None:
    given, made = forms.call("proposes", gpu=True, tokens=3)
    assert (given["speculative_algorithm"], given["speculative_num_draft_tokens"], made["speculative"]) == (
        "NGRAM",
        4,
        3,
    )
    assert all(forms.call("knows", names=list(given)))
    given, made = forms.call("proposes", gpu=False, tokens=3)
    assert given == {}
    assert "speculative" not in made  # "has no such switch"


def test_an_sglang_without_update_sessions_is_updated_without(forms: WorkerClient) -> None:
    """0.5.17. Last: the process stays such a one."""
    forms.call("older")
    assert [*asked(forms, "tensor")] == ["update_weights_from_tensor"]
    group = ["init_weights_update_group", "update_weights_from_distributed", "destroy_weights_update_group"]
    assert [*asked(forms, "nccl")] == group
