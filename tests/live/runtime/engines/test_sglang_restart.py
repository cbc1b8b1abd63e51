"""How SGLang is started and asked to sleep; and a start that fails: the next one has a process of its own."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from ckptcheck.errors import CkptcheckError
from ckptcheck.live.runtime.engines import registry, remote, sglang, vllm
from ckptcheck.live.runtime.engines.engine_options import Switches
from ckptcheck.live.runtime.engines.sglang import SglangEngine, SglangOptions
from ckptcheck.live.runtime.environments.interpreter import Interpreter
from ckptcheck.live.runtime.process.errors import RemoteError

SAID = {
    "version": "0.5.23",
    "dtype": "float32",
    "ranks": 1,
    "architecture": "",
    "facts": {"device": "cpu"},
    "switches": {},
}
TRACE = (
    "  File sglang/srt/layers",
    "NotImplementedError: The W8A8Int8 Fused MoE scheme is implemented only for NPU for now.",
)
hosts: list[FakeHost] = []


class FakeHost:
    """Refuses to start without chunks, as SGLang may."""

    def __init__(self, *_: object, **__: object) -> None:
        self.starts, self.closed, self.failed = 0, False, False
        self.told: list[tuple[str, object]] = []
        hosts.append(self)

    def call(self, verb: str, *, switches: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
        assert not self.closed
        self.told.append((verb, more.get("options", more.get("tags"))))
        if switches is None:
            return {}
        self.starts += 1
        if switches.get("chunked_prefill") is False:
            self.failed = True
            raise RemoteError("sglang", verb, "RuntimeError", "Rank 0 scheduler died during initialization", "")
        return SAID

    def read_log_tail(self) -> tuple[str, ...]:
        return ("ValueError: of an update long ago", *((*TRACE, "sglang: bye") if self.failed else ()))

    def close(self) -> None:
        self.closed = True


@pytest.fixture(autouse=True)
def fakes(monkeypatch: pytest.MonkeyPatch) -> None:
    hosts.clear()
    monkeypatch.setattr(remote, "WorkerClient", FakeHost)
    fake = Interpreter("sglang", Path("python"), {}, {})
    monkeypatch.setattr(remote, "find_interpreter", lambda *_: fake)


def test_on_a_cpu_every_start_of_sglang_has_a_process_of_its_own(tmp_path: Path) -> None:
    with SglangEngine(tmp_path) as engine:
        engine.restart(tmp_path)
        assert [(host.starts, host.closed) for host in hosts] == [(1, True), (1, False)]


def test_a_start_after_one_that_failed_has_a_new_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SAID, "facts", {"device": "cuda"})
    whole = SglangOptions(switches=Switches(chunked_prefill=False))
    with SglangEngine(tmp_path) as engine:
        engine.restart(tmp_path, SglangOptions())
        assert [host.starts for host in hosts] == [2]
        with pytest.raises(RemoteError):
            engine.restart(tmp_path, whole)
        engine.restart(tmp_path, SglangOptions())
        assert [(host.starts, host.closed) for host in hosts] == [(3, True), (1, False)]
    assert all(host.closed for host in hosts)


def test_a_first_start_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(RemoteError):
        SglangEngine(tmp_path, SglangOptions(switches=Switches(chunked_prefill=False)))
    assert [host.closed for host in hosts] == [True]


def test_weights_are_dropped_in_sleep_where_it_was_started_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SAID, "facts", {"device": "cuda"})
    dropping = SglangOptions(sleep_level=2, extra_arguments={"log_level": "info"})
    with SglangEngine(tmp_path, dropping) as engine:
        engine.sleep(2)
        engine.wake(["weights"])
        engine.wake(["kv_cache", "cuda_graph"])
        with pytest.raises(CkptcheckError, match="was started to sleep at level 2, not 1"):
            engine.sleep()
        engine.restart(tmp_path)
        engine.restart(tmp_path, SglangOptions())
        engine.sleep()
        engine.wake()
    bare = {"log_level": "info", "enable_weights_cpu_backup": False}
    assert hosts[0].told == [
        ("start", bare),
        ("sleep", None),
        ("wake", ["weights"]),
        ("wake", ["kv_cache", "cuda_graph"]),
        ("start", bare),
        ("start", {}),
        ("sleep", None),
        ("wake", None),
    ]


def test_an_engine_that_never_sleeps_is_not_started_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sglang, "kv_cache_size", lambda *_: (64, 64))
    with registry.start_engine("sglang", tmp_path, context_len=64) as engine:
        engine.close()
    assert hosts[0].told[0] == ("start", {"enable_weights_cpu_backup": False, "enable_memory_saver": False})


@pytest.mark.parametrize(("device", "processes"), [("cpu", 1), ("cuda", 2)])
def test_on_a_gpu_every_start_of_vllm_has_a_process_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device: str, processes: int
) -> None:
    monkeypatch.setattr(vllm, "kv_cache_size", lambda *_: (64, 64))
    monkeypatch.setitem(SAID, "facts", {"device": device})
    engine = registry.start_engine("vllm", tmp_path, context_len=64)
    again = registry.start_engine("vllm", tmp_path, context_len=64, replaces=engine)
    again.close()
    assert (again is engine, len(hosts)) == (processes == 1, processes)
    assert all(host.closed for host in hosts)


def test_why_a_scheduler_died_is_told_in_its_own_words_and_what_they_come_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config.json").write_text("{}")
    monkeypatch.setattr(sglang, "kv_cache_size", lambda *_: (64, 64))
    whole = Switches(chunked_prefill=False)
    with pytest.raises(RemoteError) as caught:
        registry.start_engine("sglang", tmp_path, switches=whole)
    assert caught.value.message == (
        "sglang could not start: NotImplementedError: The W8A8Int8 Fused MoE scheme is implemented only for NPU for now"
    )
    assert caught.value.hint == registry.NO_EXPERTS
    monkeypatch.setattr(sys.modules[__name__], "TRACE", ())
    with pytest.raises(RemoteError, match="RuntimeError: Rank 0 scheduler died") as caught:
        registry.start_engine("sglang", tmp_path, switches=whole)
    assert caught.value.hint is None


@pytest.mark.parametrize(
    "said",
    [
        "No WNA16 MoE backend supports the deployment configuration.",
        "No Int8 MoE backend supports the deployment configuration (weight_key=QuantKey(i8)).",
        "Unsupported FP8 MoE backend: NONE",
    ],
)
def test_what_vllm_says_of_experts_for_which_it_has_no_kernel(said: str) -> None:
    assert registry.explain_refusal("vllm", said) == registry.NO_EXPERTS
    assert registry.explain_refusal("sglang", said) is None
