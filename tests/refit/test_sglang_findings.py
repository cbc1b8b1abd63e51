"""What a trial finds on the real SGLang: each fault is done to what is sent to it, or to what lies in it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from bench import Bench, told, without
from conftest import needs_engine

from ckptcheck.engines.sglang import SglangEngine

pytestmark = [pytest.mark.engine, pytest.mark.xdist_group("sglang-cpu")]
AT = "model.layers.1."


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    needs_engine("sglang")
    made = Bench(tmp_path_factory.mktemp("bench"), SglangEngine, "qwen3-wide", "tensor")
    yield made
    made.close()


def test_a_sound_sync_is_clean(bench: Bench) -> None:
    for transport in ("tensor", "disk"):
        report = bench.trial(transport=transport, steps=0)
        assert (report.verdict, report.findings) == ("clean", ())


def test_a_name_that_qwen3_moe_does_not_have_is_dropped_in_silence(bench: Bench) -> None:
    strange = f"{AT}mlp.strange.weight"
    found = told(bench.trial(extra=strange, steps=0))
    assert found.keys() == {"REF019"}
    assert strange in found["REF019"]


def test_success_is_said_of_what_was_not_sent(bench: Bench) -> None:
    found = told(bench.trial(without(f"{AT}self_attn.o_proj.weight", f"{AT}self_attn.k_proj.weight"), steps=0))
    assert f"1 tensor was not written by the sync: {AT}self_attn.o_proj.weight" in found["REF001"]
    assert "4,096 of 16,384 elements were not written (8,192 to 12,287)" in found["REF002"]
    assert f"{AT}self_attn.k_proj.weight" in found["REF002"]
    assert found["REF009"] == "sync 1 reported success, and the engine holds other weights than were sent"


def test_a_rotary_cache_that_was_touched(bench: Bench) -> None:
    rotary = next(name for _, name in bench.tested.manifest() if name.endswith("cos_sin_cache"))
    found = told(bench.trial(after=lambda engine, _: engine.poke(rotary, 5, 20), steps=0))
    bench.tested.poke(rotary, 5, 20)
    assert found.keys() == {"REF005"}
    assert rotary in found["REF005"]


def test_a_failure_is_said_where_a_request_runs_in_place(bench: Bench) -> None:
    found = told(bench.trial(steps=0, pause="in_place"))
    assert found.keys() == {"REF009"}
    assert "Weights were updated, but the cache was not flushed" in found["REF009"]
    assert found["REF009"].endswith("and all weights were written")
    assert not told(bench.trial(steps=0, pause="retract"))
