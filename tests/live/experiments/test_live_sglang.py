"""Parity on the real SGLang beside megatron-core: the matrix of a pair that agrees, and the probes of one set-up.

Prompts are computed in pieces throughout: SGLang then calls what forces tokens for each piece.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import live
import pytest

from ckptcheck.checkpoint.open import open_checkpoint
from ckptcheck.linter import rule_loader
from ckptcheck.linter.runner import run_rules
from ckptcheck.live.experiments.matrix.live_matrix import MatrixRun
from ckptcheck.live.experiments.matrix.trace import MatrixTrace, Plan
from ckptcheck.live.experiments.probes.environment import EngineSetup, ProbeEnvironment, run_probes
from ckptcheck.live.experiments.probes.registry import select_probes
from ckptcheck.live.experiments.record import DefaultPrompts
from ckptcheck.live.runtime.engines import registry
from ckptcheck.live.runtime.engines.base import Engine
from ckptcheck.live.runtime.engines.engine_options import Switches
from ckptcheck.live.runtime.engines.sampling import Sampling
from ckptcheck.live.runtime.process.exchange import TensorExchange
from ckptcheck.live.runtime.trainers.megatron import start_megatron
from ckptcheck.rollouts.prompts import make_synthetic_prompts
from tests.conftest import needs_engine

pytestmark = [pytest.mark.engine, pytest.mark.xdist_group("sglang-cpu")]
RULES = rule_loader.load_rules()


class Kept:
    """A side that a run may close, and that lives on for the next test."""

    def __init__(self, side: object) -> None:
        self._side = side

    def __getattr__(self, name: str) -> Any:
        return getattr(self._side, name)

    def close(self) -> None:
        pass


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[DefaultPrompts, Any, Any, Path]]:
    """SGLang and Megatron that hold a tiny mixture of experts, and where it lies."""
    needs_engine("sglang")
    needs_engine("megatron")
    folder = tmp_path_factory.mktemp("sglang")
    place = live.write("qwen3-moe", folder / "moe")
    ckpt = open_checkpoint(str(place))
    with TensorExchange() as exchange:
        trainer = start_megatron(ckpt, exchange)
        try:
            engine = registry.start_engine(
                "sglang",
                place,
                context_len=256,
                concurrent_sequences=3,
                switches=Switches(chunk=16),
                scratch=(exchange.folder, folder),
            )
            try:
                yield DefaultPrompts(ckpt), engine, trainer, place
            finally:
                engine.close()
        finally:
            trainer.close()


def test_the_matrix_of_megatron_and_sglang(both: tuple[DefaultPrompts, Any, Any, Path]) -> None:
    asking, engine, trainer, _ = both
    plan = Plan(
        (40,), ("synthetic",), ("sampling",), (3,), (("megatron", "sglang"),), repeats=1, response=8, sequences=3
    )
    ledger: dict[Any, Any] = {}
    MatrixRun(plan, {"sglang": engine}, {"megatron": trainer}, asking.prompts, ledger).run()
    trace = MatrixTrace("moe", ledger)
    assert run_rules(trace, RULES).findings == ()
    (value,) = trace.values.values()
    assert set(value.directions) == {"engine", "trainer"}
    assert value.tokens == 2 * 3 * 8
    assert 1 <= value.error < 1.0001


def test_the_probes_of_one_setup(both: tuple[DefaultPrompts, Any, Any, Path]) -> None:
    asking, engine, trainer, place = both
    bench = ProbeEnvironment(
        asking.choose(24, 3), asking.vocabulary, place.parent, start_trainer=lambda *_: cast(Any, Kept(trainer)),
        sampling=Sampling(0.7), stop_tokens=asking.stop_tokens, length=256, block=64, response=16, long=24,
    )  # fmt: skip

    def start(setup: EngineSetup, instead: Engine | None) -> Engine:
        logprobs = setup.switches.logprobs
        assert setup == EngineSetup(Switches(logprobs=logprobs)), "one set-up is enough for these"
        engine._call_ranks("set_logprobs_mode", logprobs or "raw")  # a new start would do no more
        return cast(Engine, Kept(engine))

    assert engine.info.facts["stock_logprobs"] == "processed"
    report = run_rules(run_probes("moe", bench, start, select_probes(["semantics"], ())), RULES)
    assert set(report.passed) == {"PRB003", "PRB005"}, "divided by the temperature, and never cut"
    told = replace(bench, setup=EngineSetup(Switches(logprobs="raw")))
    report = run_rules(run_probes("moe", told, start, select_probes(["semantics"], ())), RULES)
    assert [finding.code for finding in report.findings] == ["PRB003"], report.findings
    names = ("decode", "padding", "routing", "stale", "inflight")  # the last two leave other weights in the trainer
    report = run_rules(run_probes("moe", bench, start, select_probes(names, ())), RULES)
    assert not report.crashed
    assert not report.skipped
    found = [(finding.code, finding.message.partition(":")[0]) for finding in report.findings]
    assert set(found) <= {
        ("PRB017", "in_place, caches cleared"), ("PRB013", "in_place, caches kept"), ("PRB013", "retract, caches kept"),
    }, report.findings  # fmt: skip
    assert {("PRB017", "in_place, caches cleared"), ("PRB013", "in_place, caches kept")} <= set(found)
    assert set(report.passed) == {
        "PRB002", "PRB009", "PRB020",
    }  # fmt: skip


def test_tokens_are_forced_while_sglang_plans_ahead(both: tuple[DefaultPrompts, Any, Any, Path]) -> None:
    """With overlap scheduling the sampler runs before the last token is noted."""
    _, engine, _, place = both
    engine.restart(place, replace(engine.options, switches=Switches(async_scheduling=True)))
    assert engine.ignored_switches == {}
    sequences = make_synthetic_prompts(512, 60, 2)
    decoded, scored = (
        engine.score_by_decode(sequences, 40),
        [each.prompt_logprobs[39:] for each in engine.score(sequences)],
    )
    assert [len(each) for each in decoded] == [20, 20]
    apart = [abs(a - b) for one, other in zip(decoded, scored, strict=True) for a, b in zip(one, other, strict=True)]
    assert max(apart) < 1e-4
