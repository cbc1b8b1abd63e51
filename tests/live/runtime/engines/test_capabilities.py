"""What an engine can do is told in one table, and the engines have what the table names."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ckptcheck.live.runtime.engines.base import EngineInfo
from ckptcheck.live.runtime.engines.capabilities import ABILITIES, find_able, why_unable
from ckptcheck.live.runtime.engines.sglang import SglangEngine
from ckptcheck.live.runtime.engines.vllm import VllmEngine


class Able:
    """An engine with every method."""

    def __init__(self, **facts: str) -> None:
        self.info = EngineInfo("fake", "1", "float32", 1, "FakeForCausalLM", facts)

    def __getattr__(self, name: str) -> Any:
        return lambda *_: None


class Plain:
    """An engine with none of them."""

    info = EngineInfo("plain", "1", "float32", 1, "FakeForCausalLM")


def test_both_engines_have_every_method_of_the_table() -> None:
    for row in ABILITIES.values():
        for method in row.methods:
            assert hasattr(VllmEngine, method), method
            assert hasattr(SglangEngine, method), method


@pytest.mark.parametrize("ability", ABILITIES)
def test_an_engine_without_the_methods_is_named(ability: Any) -> None:
    plain: Any = Plain()
    assert why_unable(plain, ability) == f"plain {ABILITIES[ability].lacks}"
    assert find_able(plain, ability) is None


@pytest.mark.parametrize(
    ("ability", "facts", "reason"),
    [
        ("arrivals", {}, ""),
        ("images", {"images": "True"}, ""),
        ("images", {}, "fake gets no images here"),
        ("images", {"images": "its tower is left out"}, "its tower is left out"),
        ("expert copies", {"redundant_experts": "2"}, ""),
        ("expert copies", {"redundant_experts": "0"}, "fake holds every expert once"),
        ("draft acceptance", {"draft": "mtp"}, ""),
        ("draft acceptance", {"draft": ""}, "fake has no draft model"),
        ("sleep", {}, ""),
        ("sleep", {"device": "cpu"}, "the sleep of fake does nothing on a CPU"),
        ("sleep", {"sleep": "False"}, "fake was not started so that it can sleep"),
    ],
)
def test_facts_say_what_an_engine_can_do_as_it_was_started(ability: Any, facts: dict[str, str], reason: str) -> None:
    engine: Any = Able(**facts)
    assert why_unable(engine, ability) == reason
    assert find_able(engine, ability) is (None if reason else engine)


def test_sglang_moves_its_buffers_on_a_cpu_too() -> None:
    engine: Any = Able(device="cpu", sleep="False")
    engine.info = replace(engine.info, name="sglang")
    assert find_able(engine, "sleep") is engine
