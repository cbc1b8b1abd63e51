"""The workers of both engines offer what the client asks, whether alike or each in its own way."""

from __future__ import annotations

import re
from typing import Any

import pytest

from ckptcheck.live.runtime.worker.ckptcheck_worker import engine_half
from tests.conftest import needs
from tests.paths import ROOT

WORKER = ROOT / "ckptcheck/live/runtime/worker/ckptcheck_worker"
CLIENTS = "\n".join(
    (ROOT / f"ckptcheck/live/runtime/engines/{module}.py").read_text() for module in ("remote", "sglang")
)
VLLM_ONLY = {"score_image", "reset_encoder_cache"}
"""Functions that the client has for both and SGLang's worker has not: SGLang says that it gets no images."""


def asked(pattern: str) -> set[str]:
    return set(re.findall(pattern, CLIENTS))


@pytest.mark.parametrize("name", ["vllm_engine", "sglang_engine"])
def test_both_workers_offer_what_the_client_asks(name: str) -> None:
    pytest.importorskip("torch")
    needs("torch")
    module = __import__(f"ckptcheck.live.runtime.worker.ckptcheck_worker.{name}", fromlist=["RPC_METHODS"])
    calls = asked(r"_call\(\s*\"(\w+)\"")
    assert len(calls) > 20
    missing = calls - module.RPC_METHODS.keys()
    assert missing == (set() if name == "vllm_engine" else VLLM_ONLY)


@pytest.mark.parametrize("name", ["vllm_worker", "sglang_worker"])
def test_both_ranks_offer_what_the_client_asks(name: str) -> None:
    text = (WORKER / f"{name}.py").read_text() + (WORKER / "rank_half.py").read_text()
    calls = asked(r"_call_ranks\(\s*\"(\w+)\"") | {"start_capture", "finish_capture", "record_experts"}
    assert len(calls) > 12
    missing = {call for call in calls if f"def ckptcheck_{call}(" not in text}
    assert missing == (set() if name == "vllm_worker" else {"time_updates"}), "SGLang fills no memory in an update"


def test_a_capture_ends_and_experts_are_let_go_where_the_engine_fails() -> None:
    calls: list[tuple[str, Any]] = []

    def call_ranks(method: str, arguments: list[Any]) -> list[Any]:
        calls.append((method, arguments[0]))
        return [[[[[1, 2]], [[3, 4]]]]]

    def fail(*_: Any) -> Any:
        raise RuntimeError("no memory")

    def reset_prefix_cache() -> None:
        calls.append(("reset", None))

    fail.__name__ = "generate"
    methods = engine_half.build_methods(object, [], [call_ranks, fail, reset_prefix_cache])
    with pytest.raises(RuntimeError, match="no memory"):
        methods["capture_activations"]([5, 6], "path")
    assert calls == [("reset", None), ("start_capture", 2), ("finish_capture", "path")]
    calls.clear()

    def respond(*_: Any) -> list[Any]:
        """Return nothing."""
        return []

    methods = engine_half.build_methods(object, [], [call_ranks, respond])
    assert methods["expert_routing"]([5]) == [[[1, 2]]]
    assert calls == [("record_experts", True), ("record_experts", False)]
