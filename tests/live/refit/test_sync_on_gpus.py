"""How a sync asks both sides where weights go by NCCL or CUDA IPC, by sides that write down what they are asked."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from ckptcheck.errors import CkptcheckError
from ckptcheck.live.refit import sync
from ckptcheck.live.refit.sync import send_weights
from ckptcheck.live.runtime.engines.base import Bucket, EngineInfo, UpdateResult
from ckptcheck.live.runtime.engines.transports import transports_of
from ckptcheck.live.runtime.process.errors import WorkerDied
from ckptcheck.live.runtime.trainers.base import TrainerInfo

PLAN = [Bucket({}, ("a", "b"), ("BF16", "BF16"), ((2, 2), (4,)), 16), Bucket({}, ("c",), ("BF16",), ((8,),), 16)]


class Trainer:
    def __init__(self, notes: list[Any]) -> None:
        self.notes = notes

    def plan_buckets(self, bucket_bytes: int) -> list[Bucket]:
        return PLAN

    def nccl_unique_id(self) -> str:
        self.notes.append("unique_id")
        return "an id"

    def send(self, group: Mapping[str, Any], bucket_bytes: int) -> None:
        self.notes.append(("send", group["kind"], group.get("unique_id")))

    def share_ipc(self, bucket_bytes: int, gpus: Sequence[str]) -> list[Bucket]:
        self.notes.append(("lend", *gpus))
        return PLAN

    def release_ipc(self) -> None:
        self.notes.append("reclaim")


class Engine:
    def __init__(self, notes: list[Any], name: str, gpus: str, dies: bool = False) -> None:
        self.notes, self.dies = notes, dies
        self.info = EngineInfo(name, "1", "bfloat16", 2, "", {"gpus": gpus})
        self.transports = transports_of(name)

    def update_weights(self, parcels: Sequence[Bucket], transport: str) -> UpdateResult:
        address = parcels[0].address
        self.notes.append(("refit", transport, address.get("world_size"), address.get("unique_id")))
        if self.dies:
            raise WorkerDied("vllm died")
        return UpdateResult(True, "", 0.0)

    def close(self) -> None:
        self.notes.append("close")


def test_the_engine_opens_what_the_trainer_lends_on_every_gpu_of_its_own() -> None:
    notes: list[Any] = []
    parcels, answer = send_weights(Trainer(notes), Engine(notes, "vllm", "A,A,B"), 100, "ipc", "one")  # type: ignore[arg-type]
    assert answer.ok
    assert len(parcels) == 2
    assert notes == [("lend", "A", "B"), ("refit", "ipc", None, None), "reclaim"]


def test_what_is_lent_is_taken_back_when_the_engine_dies() -> None:
    notes: list[Any] = []
    with pytest.raises(WorkerDied, match="vllm died"):
        send_weights(Trainer(notes), Engine(notes, "vllm", "A", dies=True), 100, "ipc", "one")  # type: ignore[arg-type]
    assert notes[-1] == "reclaim"


@pytest.mark.parametrize(("name", "plane", "told"), [("vllm", "nccl-id", "an id"), ("sglang", "nccl", None)])
def test_both_sides_meet_as_the_engine_has_it(name: str, plane: str, told: str | None) -> None:
    notes: list[Any] = []
    send_weights(Trainer(notes), Engine(notes, name, "B"), 100, "nccl", "one")  # type: ignore[arg-type]
    assert ("send", plane, told) in notes
    assert ("refit", "nccl", 3, told) in notes
    assert ("unique_id" in notes) is bool(told)


def test_a_trainer_that_waits_in_nccl_for_an_engine_that_left_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = threading.Event()

    class Waiting(Trainer):
        info = TrainerInfo("megatron", "1", "bfloat16", "", "")

        def send(self, group: Mapping[str, Any], bucket_bytes: int) -> None:
            assert ended.wait(60)
            raise WorkerDied("megatron is closed")

        def close(self) -> None:
            ended.set()

    class Refusing(Engine):
        def update_weights(self, buckets: Sequence[Bucket], transport: str) -> UpdateResult:
            return UpdateResult(False, "ValueError: Invalid init_info", 0.0)

    monkeypatch.setattr(sync, "GRACE", 0.05)
    engine = Refusing([], "vllm", "B")
    with pytest.raises(
        WorkerDied, match=r"vllm left the update \(ValueError: Invalid init_info\), and megatron, .* was ended"
    ):
        send_weights(Waiting([]), engine, 100, "nccl", "one")  # type: ignore[arg-type]
    assert engine.notes == []


def test_a_trainer_that_cannot_lend_is_refused() -> None:
    class Packer:
        info = EngineInfo("quantized", "1", "", 1, "")

    with pytest.raises(CkptcheckError, match="weights of quantized leave it by files or gloo only"):
        send_weights(Packer(), Engine([], "vllm", "A"), 100, "ipc", "one")  # type: ignore[arg-type]
