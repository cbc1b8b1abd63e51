"""Every transport has both ends, what cannot work is refused, and a new one needs a row and one function."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ckptcheck.errors import CkptcheckError
from ckptcheck.live.refit.sync import SENDERS, send_weights
from ckptcheck.live.runtime.engines import registry, remote, transports
from ckptcheck.live.runtime.engines.sampling import Sampling
from ckptcheck.live.runtime.engines.transports import TRANSPORTS, Transport, available_transports, find_transport
from ckptcheck.live.runtime.engines.vllm import VllmEngine
from ckptcheck.live.runtime.environments.interpreter import Interpreter
from ckptcheck.live.runtime.process.exchange import TensorExchange
from ckptcheck.live.runtime.worker.ckptcheck_worker import communicator, sglang_update, vllm_update
from tests.doubles import fake_engine
from tests.factories.sent_buckets import write_buckets
from tests.paths import DOUBLES

ROWS = [(engine, row) for engine, rows in TRANSPORTS.items() for row in rows]
ENDS: dict[str, Any] = {"vllm": vllm_update.TRANSPORTS, "sglang": sglang_update.TRANSPORTS}


@pytest.mark.parametrize("engine", TRANSPORTS)
def test_the_engines_worker_takes_weights_by_every_declared_transport_and_no_other(engine: str) -> None:
    assert set(ENDS[engine]) == {row.name for row in TRANSPORTS[engine]}


@pytest.mark.parametrize(("engine", "row"), ROWS, ids=lambda value: getattr(value, "name", value))
def test_the_trainer_can_send_by_every_declared_transport(engine: str, row: Transport) -> None:
    assert row.sender in SENDERS
    assert (row.rendezvous in communicator.JOINS) is (row.sender == "group")
    assert row.devices
    assert row.is_between_gpus or row.sender != "ipc"


@pytest.mark.parametrize("engine", TRANSPORTS)
def test_an_engine_has_a_default_for_every_device_and_one_for_running_requests(engine: str) -> None:
    default = find_transport(engine, None)
    assert (default.sender, default.devices) == ("files", ("cpu", "cuda"))
    assert not default.needs_launch
    inflight = [row for row in TRANSPORTS[engine] if row.supports_inflight]
    assert inflight
    assert {row.sender for row in inflight} == {"files"}, "an update of running requests writes the weights to files"


def test_a_running_engine_has_the_transports_of_its_device() -> None:
    def names(*arguments: str) -> list[str]:
        return [row.name for row in available_transports(*arguments)]

    assert names("vllm", "cpu", "gloo") == ["reload", "gloo", "load_weights"]
    assert names("vllm", "cpu", "None") == ["reload", "load_weights"]  # a vLLM without the weight-transfer API
    assert names("vllm", "cuda", "ipc") == ["reload", "ipc", "load_weights"]
    assert names("sglang", "cpu") == ["tensor", "flattened_bucket", "gloo", "disk"]
    assert names("sglang", "cuda") == ["tensor", "flattened_bucket", "gloo", "nccl", "disk"]


@pytest.mark.parametrize(
    ("engine", "name", "device", "message", "hint"),
    [
        (
            "vllm", "ipc", "cpu", "ipc carries weights between GPUs only, and vllm computes on a CPU",
            "choose one of reload, gloo, load_weights",
        ),
        (
            "sglang", "nccl", "cpu", "nccl carries weights between GPUs only, and sglang computes on a CPU",
            "choose one of tensor, flattened_bucket, gloo, disk",
        ),
        (
            "vllm", "gloo", "cuda", "gloo carries weights to a CPU only, and vllm computes on GPUs",
            "choose one of reload, nccl, ipc, load_weights",
        ),
        ("vllm", "disk", "cpu", "weights do not reach vllm by disk", "choose one of reload, gloo, nccl, ipc, load_weights"),
        ("tgi", "disk", "cpu", "there is no engine tgi", "choose one of vllm, sglang"),
    ],
)  # fmt: skip
def test_what_cannot_work_is_refused_with_what_can(
    engine: str, name: str, device: str, message: str, hint: str
) -> None:
    with pytest.raises(CkptcheckError) as caught:
        transports.require_device(engine, name, device)
    assert (caught.value.message, caught.value.hint) == (message, hint)


def interpreter(torch: str) -> Interpreter:
    return Interpreter("vllm", Path(sys.executable), {"vllm": "0.32.0", "torch": torch}, {})


def test_a_build_for_cpus_is_refused_before_it_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "ckptcheck.live.runtime.environments.interpreter.find_interpreter", lambda *_: interpreter("2.13.0+cpu")
    )
    registry.check_build("vllm", "gloo", None)
    with pytest.raises(CkptcheckError, match="ipc carries weights between GPUs only, and vllm computes on a CPU"):
        registry.check_build("vllm", "ipc", None)
    monkeypatch.setattr(
        "ckptcheck.live.runtime.environments.interpreter.find_interpreter", lambda *_: interpreter("2.13.0+cu130")
    )
    registry.check_build("vllm", "ipc", None)  # whether there is a GPU shows when it starts


@pytest.mark.parametrize("transport", ["ipc", "nccl"])
def test_vllm_on_a_cpu_is_not_started_for_a_transport_between_gpus(transport: str) -> None:
    with pytest.raises(
        RuntimeError, match=f"{transport} carries weights between GPUs only, and this vLLM computes on a CPU"
    ):
        vllm_update.choose_backend(transport, on_cpu=True)


def test_vllm_on_gpus_is_not_started_for_gloo() -> None:
    with pytest.raises(RuntimeError, match="gloo carries weights to a CPU only"):
        vllm_update.choose_backend("gloo", on_cpu=False)


def test_a_toy_transport_goes_the_whole_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row = Transport("toy", "a toy", joins_buckets=True, supports_inflight=True)
    monkeypatch.setattr(transports, "TRANSPORTS", {**TRANSPORTS, "vllm": (*TRANSPORTS["vllm"], row)})
    monkeypatch.setattr(VllmEngine, "module", DOUBLES / "toy_transport.py")
    monkeypatch.setattr(remote, "find_interpreter", lambda *_: interpreter("2.13.0+cpu"))
    assert registry.choose_transport("vllm", "toy") == "toy"
    assert "load_weights, toy;" in transports.describe_transports()

    class Trainer:
        def __init__(self, exchange: TensorExchange) -> None:
            self.exchange = exchange

        def export(self, bucket_bytes: int) -> Any:
            tensors = {name: np.zeros(4, np.float32) for name in ("a", "b", "c")}
            return write_buckets(tensors, self.exchange, bucket_bytes)

    with TensorExchange("file") as exchange, VllmEngine(tmp_path) as engine:
        assert [each.name for each in engine.transports] == ["reload", "load_weights", "toy"]
        trainer: Any = Trainer(exchange)
        buckets, result = send_weights(trainer, engine, 16, "toy", "one")
        assert len(buckets) == 3
        assert (result.ok, result.loaded_names, result.weight_version) == (True, ("a", "b", "c"), "1")
        assert not list(exchange.folder.iterdir())
        with pytest.raises(CkptcheckError, match="weights do not reach vllm by ipc"):
            send_weights(trainer, engine, 16, "ipc", "two")
        update = partial(
            engine.update_inflight,
            [],
            Sampling(),
            trainer.export(16),
            pause="keep",
            clear_cache=True,
            after=1,
            version="7",
        )
        result = update(transport="toy").update
        assert (result.ok, result.loaded_names, result.weight_version) == (True, ("a", "b", "c"), "7")
        with pytest.raises(CkptcheckError, match="vLLM takes no weights by load_weights while requests run") as caught:
            update(transport="load_weights")
        assert caught.value.hint == "choose one of reload, toy"


def test_the_fake_engine_declares_its_transports_itself() -> None:
    assert [row.name for row in fake_engine.FakeEngine.transports] == ["reload", "gloo", "stream"]
