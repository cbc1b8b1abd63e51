"""What a trial finds, on the real vLLM: each fault is done to what is sent to it, or to what lies in it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import live
import numpy as np
import pytest
import sent
from conftest import needs_engine
from refitted import FakeTrainer

from ckptcheck import pack
from ckptcheck.engines.base import Answer, Engine, Parcel
from ckptcheck.engines.vllm import VllmEngine, VllmOptions
from ckptcheck.host.exchange import Exchange
from ckptcheck.refit.settings import Settings
from ckptcheck.refit.trial import Trial
from ckptcheck.report import Report
from ckptcheck.run import run

pytestmark = [pytest.mark.engine, pytest.mark.xdist_group("vllm-cpu")]
RULES = [rule for rule in pack.load() if rule.on == "refit"]
AT = "model.layers.1."
Tensors = dict[str, np.ndarray]
Change = Callable[[Tensors, int], Tensors]


class Sender(FakeTrainer):
    """Holds the weights of a checkpoint. Its steps are the same every time, so cold loads of them can be kept."""

    def __init__(self, folder: Path, held: Tensors) -> None:
        super().__init__(folder)
        self._held, self.steps = held, 0

    def perturb(self, scale: float, *, seed: int = 0) -> None:
        self._held = sent.stepped(self._held, seed=seed)

    def save(self, folder: Path) -> None:
        pass  # the references are there already


class Faulty:
    """A live engine that is sent other tensors than the trainer sends, and touched afterwards. Not ended with a trial.

    changed: gets the tensors and the number of the sync, returns what is sent. after: called when the sync is over.
    """

    transports = ("reload", "load_weights")

    def __init__(self, engine: Engine, changed: Change, after: Callable[[Any, int], None], chunks: bool) -> None:
        self._engine, self._changed, self._after, self._chunks = engine, changed, after, chunks
        self._number = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def refit(self, parcels: Sequence[Parcel], transport: str, *, timeout: float | None = None) -> Answer:
        self._number += 1
        tensors: Tensors = {}
        for parcel in parcels:
            tensors |= sent.load_file(parcel.address["path"])
        with Exchange() as exchange:
            made = sent.buckets(self._changed(tensors, self._number), exchange, parcels[0].nbytes)
            calls = [[each] for each in made] if self._chunks else [made]
            answer = [self._engine.refit(each, transport) for each in calls][-1]
        self._after(self._engine, self._number)
        return answer

    def close(self) -> None:
        pass


class Bench:
    """Two processes of vLLM: the one under test, and one that is started cold from the trainer's weights."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.trials = folder, 0
        self.first = live.write("qwen3", folder / "step0")
        self.held = sent.weights(self.first)
        sent.checkpoint(self.first, sent.stepped(self.held, seed=1), folder / "step1")
        self.tested, self.cold = VllmEngine(self.first), VllmEngine(folder / "step1")
        self.loaded = "step1"

    def start(self, checkpoint: Path) -> Engine:
        if self.loaded != checkpoint.name:
            self.cold.restart(self.folder / checkpoint.name)
            self.loaded = checkpoint.name
        return Faulty(self.cold, lambda tensors, _: tensors, lambda *_: None, False)

    def trial(
        self,
        changed: Change = lambda tensors, _: tensors,
        after: Callable[[Any, int], None] = lambda *_: None,
        *,
        chunks: bool = False,
        transport: str = "reload",
    ) -> Report:
        """Run a trial with that fault; the engine is put right first."""
        self.trials += 1
        with Exchange() as exchange:
            assert self.tested.refit(sent.buckets(self.held, exchange), "reload").ok
        folder = self.folder / f"trial{self.trials}"
        folder.mkdir()
        engines = iter([Faulty(self.tested, changed, after, chunks)])
        settings = Settings(bucket_bytes=60_000, other_bytes=20_000, logprobs=False, transport=transport)
        trainer = Sender(folder, dict(self.held))
        trial = Trial(
            "live", lambda: trainer, lambda path: next(engines, None) or self.start(path), settings, vocabulary=512, folder=folder
        )  # fmt: skip
        trace = trial.run()
        assert not trace.broken
        return run(trace, RULES)

    def close(self) -> None:
        self.tested.close()
        self.cold.close()


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    needs_engine("vllm")
    made = Bench(tmp_path_factory.mktemp("bench"))
    yield made
    made.close()


def told(report: Report) -> dict[str, str]:
    return {finding.code: finding.message for finding in report.findings}


def without(*names: str) -> Change:
    return lambda tensors, _: {name: values for name, values in tensors.items() if name not in names}


def later(change: Callable[[Tensors], Mapping[str, np.ndarray]]) -> Change:
    """Change what is sent from the second sync on."""
    return lambda tensors, number: {**tensors, **change(tensors)} if number > 1 else tensors


def test_a_sound_sync_is_clean(bench: Bench) -> None:
    for transport in ("reload", "load_weights"):
        report = bench.trial(transport=transport)
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
