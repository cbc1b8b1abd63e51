"""What a trial finds, on the real vLLM: each fault is done to what is sent to it, or to what lies in it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import live
import numpy as np
import pytest

from ckptcheck.linter.runner import run_rules
from ckptcheck.live.refit.trial import RefitTrial
from ckptcheck.live.refit.trial_state import TrialSettings
from ckptcheck.live.runtime.engines.base import Engine
from ckptcheck.live.runtime.engines.vllm import VllmEngine, VllmOptions
from tests.conftest import needs_engine
from tests.doubles.faults import faulty_engines, flip_bit
from tests.factories import sent_buckets
from tests.factories.live_bench import (
    RULES,
    Change,
    FaultInjectingEngine,
    FixedStepTrainer,
    LiveTrials,
    Tensors,
    drop_tensors,
    messages_by_code,
)

pytestmark = [pytest.mark.engine, pytest.mark.xdist_group("vllm-cpu")]
AT = "model.layers.1."


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveTrials]:
    needs_engine("vllm")
    with faulty_engines():
        made = LiveTrials(tmp_path_factory.mktemp("bench"), VllmEngine, "qwen3", "reload")
        yield made
        made.close()


def later(change: Callable[[Tensors], Mapping[str, np.ndarray]]) -> Change:
    """Change what is sent from the second sync on."""
    return lambda tensors, number: {**tensors, **change(tensors)} if number > 1 else tensors


def test_a_sound_sync_is_clean(bench: LiveTrials) -> None:
    for transport in ("reload", "load_weights"):
        report = bench.trial(transport=transport)
        assert (report.verdict, report.findings) == ("clean", ())
        assert ("REF008" in report.passed) == (transport == "load_weights")  # the one that is a call for every bucket


def test_a_loader_that_drops_what_comes_first_in_a_bucket(bench: LiveTrials) -> None:
    """Only where buckets are calls of their own can their sizes matter; so this is sent by load_weights."""
    seen: list[int] = []

    def losing(tensors: Tensors, number: int) -> Tensors:
        seen.append(number)
        return drop_tensors(f"{AT}mlp.down_proj.weight")(tensors, number) if number == 2 else tensors

    found = messages_by_code(bench.trial(losing, transport="load_weights"))
    assert "in buckets of" in found["REF008"]
    assert seen == [1, 2, 3]


@pytest.mark.parametrize("pause", ["keep", "abort"])
def test_a_sync_beside_a_running_request_is_clean(bench: LiveTrials, pause: str) -> None:
    report = bench.trial(steps=0, pause=pause)
    assert (report.verdict, report.findings) == ("clean", ())


def test_what_was_not_sent_is_not_written(bench: LiveTrials) -> None:
    found = messages_by_code(bench.trial(drop_tensors(f"{AT}mlp.down_proj.weight")))
    assert found["REF001"].startswith(f"the sync did not write 1 tensor: {AT}mlp.down_proj.weight")
    assert "reported success" in found["REF001"]
    assert found["REF009"] == "sync 1 reported success, but the engine holds other weights than were sent"
    for transport in ("reload", "load_weights"):  # the one leaves memory that nobody wrote, the other what was there
        found = messages_by_code(bench.trial(drop_tensors(f"{AT}self_attn.k_proj.weight"), transport=transport))
        assert "4096 of 16384 elements were not written (8192 to 12287)" in found["REF001"].replace(",", "")


def test_what_is_sent_otherwise_is_different_and_the_cause_is_named(bench: LiveTrials) -> None:
    gate, up, norm = f"{AT}mlp.gate_proj.weight", f"{AT}mlp.up_proj.weight", f"{AT}input_layernorm.weight"
    found = messages_by_code(bench.trial(later(lambda tensors: {gate: tensors[up], up: tensors[gate]})))
    assert "gate and up are swapped" in found["REF003"]
    found = messages_by_code(bench.trial(later(lambda tensors: {gate: rounded(tensors[gate])})))
    assert "rounded to bf16 and back" in found["REF003"]
    found = messages_by_code(bench.trial(later(lambda tensors: {norm: np.full_like(tensors[norm], np.nan)})))
    assert "REF003" in found
    found = messages_by_code(bench.trial(later(lambda tensors: {gate: 2 * tensors[gate]})))
    assert "REF003" in found


def test_a_sync_that_sends_the_same_values_again_is_proved(bench: LiveTrials) -> None:
    """The engine holds these values already, so only marks show what the third sync leaves out."""
    name, part = f"{AT}mlp.down_proj.weight", f"{AT}self_attn.k_proj.weight"
    for lost, code in ((name, "REF001"), (part, "REF001")):
        report = bench.trial(lambda sent, number, lost=lost: drop_tensors(lost)(sent, number) if number == 3 else sent)
        found = messages_by_code(report)
        assert found.keys() == {code, "REF008", "REF009"} - ({"REF008"} if "REF008" not in found else set())
        assert "sync 3, which sent the same values once more, " in found[code]
    assert part in found["REF001"]


def rounded(values: np.ndarray) -> np.ndarray:
    """Round to bfloat16 and back, as a cast on the way does."""
    bits = values.copy().view(np.uint32)
    return (((bits + 0x7FFF + (bits >> 16 & 1)) >> 16) << 16).view(np.float32)


def test_what_is_sent_again_is_stale(bench: LiveTrials) -> None:
    name = f"{AT}self_attn.o_proj.weight"
    found = messages_by_code(bench.trial(later(lambda _: {name: bench.held[name]})))
    assert found["REF004"].startswith(f"after sync 2, 1 tensor still has the values of an earlier step: {name}")
    assert "REF003" not in found


def test_what_changes_though_nothing_was_sent(bench: LiveTrials) -> None:
    rotary = next(name for _, name in bench.tested.digest_tensors() if name.endswith("cos_sin_cache"))

    def flipped(name: str) -> Callable[[Any, int], None]:
        return lambda engine, number: flip_bit(engine, name, 5, 20) if number == 2 else None

    found = messages_by_code(bench.trial(after=flipped(rotary)))
    assert found.keys() == {"REF005"}
    assert found["REF005"].startswith(f"after sync 2, {rotary}")  # layers share it
    assert "after the cold load, although nothing was sent for " in found["REF005"]
    flip_bit(bench.tested, rotary, 5, 20)
    found = messages_by_code(bench.trial(after=flipped("model.norm.weight")))
    assert found["REF003"].startswith("after sync 2, 1 tensor differs from a cold load")
    assert "model.norm.weight" in found["REF003"]
    assert "REF008" in found  # the third sync wrote it again


def test_a_call_for_every_bucket_is_not_one_update(bench: LiveTrials) -> None:
    """vLLM 0.32 finishes a layer with every call of reload_weights; what other calls bring for it comes too late."""
    report = bench.trial(chunks=True)
    assert {"REF001", "REF003", "REF009"} & messages_by_code(report).keys()


def test_stock_experts_are_left_in_another_layout(bench: LiveTrials, tmp_path: Path) -> None:
    source = live.write("qwen3-moe", tmp_path / "step0")
    held = sent_buckets.read_weights(source)
    sent_buckets.write_checkpoint(source, sent_buckets.perturb_weights(held, seed=1), tmp_path / "step1")
    stock = VllmOptions(mode="stock")
    bench.start(bench.folder / "step1")  # so that there is another engine
    bench.tested.restart(source, stock)
    bench.cold.restart(tmp_path / "step1", stock)
    settings = TrialSettings(bucket_bytes=1 << 20, logprobs=False)
    trainer = FixedStepTrainer(tmp_path, held)
    same: Change = lambda tensors, _: tensors  # noqa: E731
    engines = iter(
        [FaultInjectingEngine(engine, same, lambda *_: None, False) for engine in (bench.tested, bench.cold)]
    )

    def start(checkpoint: Path) -> Engine:
        if (engine := next(engines, None)) is not None:
            return engine
        bench.cold.restart(tmp_path / checkpoint.name, stock)
        return FaultInjectingEngine(bench.cold, same, lambda *_: None, False)

    trace = RefitTrial(
        "stock", lambda: trainer, start, settings, vocabulary=512, folder=tmp_path / "..", say=print
    ).run()
    assert not trace.failed_phases
    found = messages_by_code(run_rules(trace, RULES))
    assert "w13_weight" in found["REF003"]
    bench.tested.restart(bench.first)
