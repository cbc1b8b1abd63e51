"""What a trial finds, on the real vLLM: each fault is done to what is sent to it, or to what lies in it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import live
import numpy as np
import pytest
import sent
from bench import RULES, Bench, Change, Faulty, Sender, Tensors, told, without
from conftest import needs_engine

from ckptcheck.engines.base import Engine
from ckptcheck.engines.vllm import VllmEngine, VllmOptions
from ckptcheck.refit.settings import Settings
from ckptcheck.refit.trial import Trial
from ckptcheck.run import run

pytestmark = [pytest.mark.engine, pytest.mark.xdist_group("vllm-cpu")]
AT = "model.layers.1."


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    needs_engine("vllm")
    made = Bench(tmp_path_factory.mktemp("bench"), VllmEngine, "qwen3", "reload")
    yield made
    made.close()


def later(change: Callable[[Tensors], Mapping[str, np.ndarray]]) -> Change:
    """Change what is sent from the second sync on."""
    return lambda tensors, number: {**tensors, **change(tensors)} if number > 1 else tensors


def test_a_sound_sync_is_clean(bench: Bench) -> None:
    for transport in ("reload", "load_weights"):
        report = bench.trial(transport=transport)
        assert (report.verdict, report.findings) == ("clean", ())
        assert ("REF008" in report.passed) == (transport == "load_weights")  # the one that is a call for every bucket


def test_a_loader_that_drops_what_comes_first_in_a_bucket(bench: Bench) -> None:
    """Only where buckets are calls of their own can their sizes matter; so this is sent by load_weights."""
    seen: list[int] = []

    def losing(tensors: Tensors, number: int) -> Tensors:
        seen.append(number)
        return without(f"{AT}mlp.down_proj.weight")(tensors, number) if number == 2 else tensors

    found = told(bench.trial(losing, transport="load_weights"))
    assert "in buckets of" in found["REF008"]
    assert seen == [1, 2, 3]


@pytest.mark.parametrize("pause", ["keep", "abort"])
def test_a_sync_beside_a_running_request_is_clean(bench: Bench, pause: str) -> None:
    report = bench.trial(steps=0, pause=pause)
    assert (report.verdict, report.findings) == ("clean", ())


def test_what_was_not_sent_is_not_written(bench: Bench) -> None:
    found = told(bench.trial(without(f"{AT}mlp.down_proj.weight")))
    assert found["REF001"].startswith(f"1 tensor was not written by the sync: {AT}mlp.down_proj.weight")
    assert "reported success" in found["REF001"]
    assert found["REF009"] == "sync 1 reported success, and the engine holds other weights than were sent"
    for transport in ("reload", "load_weights"):  # the one leaves memory that nobody wrote, the other what was there
        found = told(bench.trial(without(f"{AT}self_attn.k_proj.weight"), transport=transport))
        assert "4096 of 16384 elements were not written (8192 to 12287)" in found["REF002"].replace(",", "")


def test_what_is_sent_otherwise_is_different_and_the_cause_is_named(bench: Bench) -> None:
    gate, up, norm = f"{AT}mlp.gate_proj.weight", f"{AT}mlp.up_proj.weight", f"{AT}input_layernorm.weight"
    found = told(bench.trial(later(lambda tensors: {gate: tensors[up], up: tensors[gate]})))
    assert "gate and up are swapped" in found["REF003"]
    found = told(bench.trial(later(lambda tensors: {gate: rounded(tensors[gate])})))
    assert "rounded to bf16 and back" in found["REF003"]
    found = told(bench.trial(later(lambda tensors: {norm: np.full_like(tensors[norm], np.nan)})))
    assert "REF003" in found
    found = told(bench.trial(later(lambda tensors: {gate: 2 * tensors[gate]})))
    assert "REF003" in found


def rounded(values: np.ndarray) -> np.ndarray:
    """Round to bfloat16 and back, as a cast on the way does."""
    bits = values.copy().view(np.uint32)
    return (((bits + 0x7FFF + (bits >> 16 & 1)) >> 16) << 16).view(np.float32)


def test_what_is_sent_again_is_stale(bench: Bench) -> None:
    name = f"{AT}self_attn.o_proj.weight"
    found = told(bench.trial(later(lambda _: {name: bench.held[name]})))
    assert found["REF004"].startswith(f"after sync 2 1 tensor is still of an earlier step: {name}")
    assert "REF003" not in found


def test_what_changes_though_nothing_was_sent(bench: Bench) -> None:
    rotary = next(name for _, name in bench.tested.manifest() if name.endswith("cos_sin_cache"))

    def flipped(name: str) -> Callable[[Any, int], None]:
        return lambda engine, number: engine.poke(name, 5, 20) if number == 2 else None

    found = told(bench.trial(after=flipped(rotary)))
    assert found.keys() == {"REF005"}
    assert found["REF005"].startswith(f"after sync 2 {rotary}")  # layers share it
    assert "after the cold load, and nothing was sent for " in found["REF005"]
    bench.tested.poke(rotary, 5, 20)
    found = told(bench.trial(after=flipped("model.norm.weight")))
    assert found["REF003"].startswith("after sync 2 1 tensor differs from a cold load")
    assert "model.norm.weight" in found["REF003"]
    assert "REF008" in found  # the third sync wrote it again


def test_a_call_for_every_bucket_is_not_one_update(bench: Bench) -> None:
    """vLLM 0.32 finishes a layer with every call of reload_weights; what other calls bring for it comes too late."""
    report = bench.trial(chunks=True)
    assert {"REF001", "REF002", "REF003", "REF009"} & told(report).keys()


def test_stock_experts_are_left_in_another_layout(bench: Bench, tmp_path: Path) -> None:
    source = live.write("qwen3-moe", tmp_path / "step0")
    held = sent.weights(source)
    sent.checkpoint(source, sent.stepped(held, seed=1), tmp_path / "step1")
    stock = VllmOptions(mode="stock")
    bench.start(bench.folder / "step1")  # so that there is another engine
    bench.tested.restart(source, stock)
    bench.cold.restart(tmp_path / "step1", stock)
    settings = Settings(bucket_bytes=1 << 20, logprobs=False)
    trainer = Sender(tmp_path, held)
    same: Change = lambda tensors, _: tensors  # noqa: E731
    engines = iter([Faulty(engine, same, lambda *_: None, False) for engine in (bench.tested, bench.cold)])

    def start(checkpoint: Path) -> Engine:
        if (engine := next(engines, None)) is not None:
            return engine
        bench.cold.restart(tmp_path / checkpoint.name, stock)
        return Faulty(bench.cold, same, lambda *_: None, False)

    trace = Trial("stock", lambda: trainer, start, settings, vocabulary=512, folder=tmp_path / "..", say=print).run()
    assert not trace.broken
    found = told(run(trace, RULES))
    assert "w13_weight" in found["REF003"]
    bench.tested.restart(bench.first)
