"""How probes are run: few starts of the engine, and what does not start or dies is said."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import live
import numpy as np
import pytest

from ckptcheck.checkpoint.open import open_checkpoint
from ckptcheck.errors import CkptcheckError
from ckptcheck.linter import rule_loader
from ckptcheck.linter.runner import run_rules
from ckptcheck.live.experiments.probes.environment import EngineSetup, ProbeEnvironment, run_probes
from ckptcheck.live.experiments.probes.registry import COMPILING_PROBES, PROBES, has_experts, select_probes
from ckptcheck.live.experiments.probes.semantics import fit_best_temperature
from ckptcheck.live.experiments.probes.trace import ProbeTrace
from ckptcheck.live.refit.inflight import find_switch
from ckptcheck.live.runtime.engines.base import Engine
from ckptcheck.live.runtime.engines.engine_options import Switches, parse_switches
from ckptcheck.live.runtime.engines.sampling import Sampling
from ckptcheck.live.runtime.process.errors import RemoteError, WorkerDied
from ckptcheck.rollouts.metrics.sampling_distribution import processed
from tests.doubles.fake_serving import FAULTS, FakeServing
from tests.factories.probe_cases import CHAT, PROMPTS, ScoringTrainer, run_probe_case
from tests.factories.refit_cases import VOCABULARY, weights

RULES = rule_loader.load_rules()


def tried(folder: Path, start: object, *names: str, trainer: bool = True, **more: object) -> ProbeTrace:
    bench = ProbeEnvironment(
        PROMPTS, VOCABULARY, folder, start_trainer=(lambda *_: ScoringTrainer(folder)) if trainer else None,
        stop_tokens={2: "config.json"}, conversation=CHAT, length=64, block=4, response=12, **more,
    )  # fmt: skip
    return run_probes("trial", bench, start, select_probes(names, ()))


def test_a_sound_engine_passes_every_probe_with_few_starts(tmp_path: Path) -> None:
    started: list[EngineSetup] = []

    def start(setup: EngineSetup, instead: Engine | None) -> Engine:
        started.append(setup)
        return FakeServing(
            weights(),
            switches=setup.switches,
            length=setup.length,
            dtype=setup.dtype or "float32",
            ends=(2,),
            chat=CHAT[1],
        )

    trace = tried(tmp_path, start, sampling=Sampling(0.7), setup=EngineSetup(Switches(logprobs="processed")))
    assert set(trace.results) == set(PROBES)
    assert len(started) == len(set(started)), "no set-up is started twice"
    report = run_rules(trace, RULES)
    assert report.findings == ()
    assert not report.crashed
    assert not report.skipped
    assert len(report.passed) == 11
    assert {section.title.partition(" ")[0] for section in report.sections} >= {
        "Decoding",
        "What",
        "Against",
        "A",
        "Tokens",
    }


def test_without_a_trainer_what_needs_one_is_skipped_and_not_passed(tmp_path: Path) -> None:
    trace = tried(tmp_path, lambda setup, _: FakeServing(weights()), "decode", "semantics", trainer=False)
    report = run_rules(trace, RULES)
    assert dict(report.skipped)["PRB005"] == "it compares with a trainer, and none was asked for (--trainer)"
    assert report.passed == ("PRB002",)


def test_a_trainer_that_is_not_installed_costs_only_those_that_want_it(tmp_path: Path) -> None:
    def start(dtype: str, head_fp32: bool, instead: object) -> object:
        raise CkptcheckError("megatron is not installed", "ckptcheck engine install megatron")

    bench = ProbeEnvironment(PROMPTS, VOCABULARY, tmp_path, start_trainer=start, length=64, block=4, response=12)
    trace = run_probes("trial", bench, lambda *_: FakeServing(weights()), select_probes(["decode", "padding"], ()))
    report = run_rules(trace, RULES)
    assert dict(report.skipped) == {"PRB009": "it compares with a trainer: megatron is not installed"}
    assert "PRB002" in report.passed


def test_a_setup_that_does_not_start_costs_only_those_that_want_it(tmp_path: Path) -> None:
    def start(setup: EngineSetup, instead: Engine | None) -> Engine:
        if setup.switches.compilation == "inductor":
            raise RemoteError("fake", "start", "RuntimeError", "no compiler here", "")
        return FakeServing(weights(), switches=setup.switches)

    report = run_rules(tried(tmp_path, start, "decode", "inductor"), RULES)
    assert dict(report.skipped) == {
        "PRB010": "inductor: the engine did not start with compilation=inductor: fake could not start: RuntimeError:"
        " no compiler here"
    }
    assert "PRB002" in report.passed


def test_a_switch_of_the_user_that_the_engine_does_not_take_is_said(tmp_path: Path) -> None:
    said: list[str] = []

    def start(setup: EngineSetup, instead: Engine | None) -> Engine:
        return FakeServing(weights(), switches=setup.switches, untaken=("async_scheduling=True",))

    own = EngineSetup(Switches(async_scheduling=True, prefix_cache=True))
    trace = tried(tmp_path, start, "decode", "chunks", "scheduling", setup=own, say=said.append)
    report = run_rules(trace, RULES)
    told = "async_scheduling: fake made it False by itself"
    lines = {section.title: section.lines for section in report.sections}
    assert lines["Switches that the engine did not take"] == (told,)
    assert lines["Probes that could not run"] == (f"scheduling: {told}",)
    assert said.count(told) == 1
    assert report.passed == ("PRB002",)
    assert "chunks" in trace.results, "what does not need it looks all the same"
    assert dict(report.skipped) == {"PRB010": f"scheduling: {told}"}


@pytest.mark.parametrize(
    ("config", "experts"), [("moe_num_experts", True), ("n_experts", True), ("num_attention_heads", False)]
)
def test_a_mixture_of_experts_is_known_by_any_of_its_names(config: str, experts: bool, tmp_path: Path) -> None:
    live.write("llama", tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), config: 4}))
    assert has_experts(open_checkpoint(str(tmp_path))) is experts


def test_an_engine_that_refuses_what_is_too_long_is_asked_for_what_has_room(tmp_path: Path) -> None:
    class Strict(FakeServing):
        spare = 0

        def generate(self, prompts: object, sampling: object, **more: object) -> object:  # type: ignore[override]
            if len(prompts[0]) + sampling.max_tokens > self._length:  # type: ignore[index,attr-defined]
                raise RemoteError("fake", "generate", "ValueError", "The request is too long. Ask for less.", "")
            fewer = replace(sampling, max_tokens=sampling.max_tokens - self.spare)  # type: ignore[type-var,attr-defined]
            return super().generate(prompts, fewer, **more)  # type: ignore[arg-type]

    def start(setup: EngineSetup, instead: Engine | None) -> Engine:
        return Strict(weights(), switches=setup.switches, length=setup.length)

    for spare, codes in ((0, []), (2, []), (3, ["PRB001"])):
        Strict.spare = spare
        report = run_rules(tried(tmp_path, start, "length"), RULES)
        assert [finding.code for finding in report.findings] == codes
        assert f"response {8 - spare} = {48 - spare}" in report.sections[0].lines[0]
        assert report.sections[0].lines[0].endswith("a request that goes beyond is refused: The request is too long")


def test_an_engine_that_dies_in_a_probe_is_said_and_the_others_go_on(tmp_path: Path) -> None:
    class Dying(FakeServing):
        def force_decode(self, prompt: object, tokens: object) -> object:  # type: ignore[override]
            raise WorkerDied("fake died (SIGKILL) when asked to forced")

    def start(setup: EngineSetup, instead: Engine | None) -> Engine:
        return Dying(weights(), switches=setup.switches, length=setup.length)

    report = run_rules(tried(tmp_path, start, "ends", "decode", "length"), RULES)
    assert report.crashed == (("PRB001", "fake died (SIGKILL) when asked to forced"),)
    assert set(report.passed) == {"PRB002"}
    assert report.exit_code("error") == 2


@pytest.mark.parametrize("fault", [each for each in FAULTS if each not in ("uncached", "rough")])
def test_every_fault_of_the_fake_engine_is_found_by_some_rule(fault: str, tmp_path: Path) -> None:
    switches = {"logprobs": "processed"} if fault in ("half", "cuts") else {}
    names = [name for name in PROBES if name not in COMPILING_PROBES]
    sampling = {"half": {"temperature": 0.7}, "cuts": {"top_p": 0.9}}.get(fault, {"temperature": 1.0})
    trace = run_probe_case({"faults": [fault], "probes": names, "switches": switches, "sampling": sampling}, tmp_path)
    report = run_rules(trace, RULES)
    assert report.findings or (fault == "mute" and report.skipped), fault


def test_unknown_probes_and_switches_are_refused() -> None:
    with pytest.raises(CkptcheckError, match="there is no probe long"):
        select_probes(["long"], ())
    for text, said in (
        ("caching=on", "no switch caching"),
        ("chunk=-1", "whole number"),
        ("prefix-cache", "the switch prefix_cache has no value"),
        ("async_scheduling=yes", "on or off"),
    ):
        with pytest.raises(CkptcheckError, match=said):
            parse_switches([text])
    assert parse_switches(["prefix-cache=off"]) == Switches(prefix_cache=False)


def test_processed_logprobs_by_hand() -> None:
    table = np.log(np.array([[0.5, 0.3, 0.15, 0.05]]))
    assert np.exp(processed(table, 1.0, 1.0, 2)[0]).tolist() == pytest.approx([0.625, 0.375, 0, 0])
    assert np.exp(processed(table, 1.0, 0.6, 0)[0]).tolist() == pytest.approx(
        [0.625, 0.375, 0, 0]
    )  # 0.5 < 0.6: the next is kept
    assert np.exp(processed(table, 1.0, 0.5, 0)[0]).tolist() == pytest.approx([1, 0, 0, 0])
    squared = np.array([0.25, 0.09, 0.0225, 0.0025])
    assert np.exp(processed(table, 0.5)[0]).tolist() == pytest.approx((squared / squared.sum()).tolist())


def test_the_temperature_that_closes_the_gap_is_found() -> None:
    table = processed(np.random.default_rng(0).standard_normal((40, 30)) * 3, 1.0)
    tokens = [list(np.random.default_rng(1).integers(0, 30, 40))]
    said = [processed(table, 0.62)[np.arange(40), tokens[0]].tolist()]
    heat, remains = fit_best_temperature([table], tokens, said)
    assert heat == pytest.approx(0.62, abs=1e-3)
    assert remains < 1e-3


def test_where_a_response_passes_to_the_new_weights() -> None:
    old, new = (-1.0, -2.0, -3.0), (-1.5, -2.5, -3.5)
    assert find_switch(old, old, new) == (3, None)
    assert find_switch((-1.0, -2.4, -3.4), old, new) == (1, 1)
    assert find_switch(new, old, new) == (0, 0)
    near = (-1.5, -2.0, -3.5)  # the second token tells nothing
    assert find_switch((-1.0, -2.0, -3.5), old, near) == (1, 2)


def test_a_compiled_engine_that_computes_nan_is_told_with_the_place(tmp_path: Path) -> None:
    class Compiled(FakeServing):
        def score_by_decode(self, sequences: object, prompt: int) -> list[tuple[float, ...]]:
            rows = super().score_by_decode(sequences, prompt)  # type: ignore[arg-type]
            return [(*row[:3], float("nan"), *row[4:]) for row in rows]

    def start(setup: EngineSetup, instead: Engine | None) -> Engine:
        kind = Compiled if setup.switches.compilation == "inductor" else FakeServing
        return kind(weights(), switches=setup.switches, dtype="bfloat16")

    trace = tried(tmp_path, start, "inductor")
    report = run_rules(trace, RULES)
    (finding,) = report.findings
    assert (finding.code, finding.severity) == ("PRB010", "warning")
    assert "3 not finite in one mode alone, first at sequence 0, position 7" in finding.message
    (table,) = report.sections
    assert table.title == "compilation=inductor against compilation=eager, atol = rtol = 0.001"
    assert [row[0] for row in table.rows] == ["prefill", "decoding", "compilation=eager against itself"]
    assert dict(zip(table.columns, table.rows[1], strict=True))["NaN"] == 3


def test_a_gap_that_bfloat16_explains_is_info_and_fails_nothing(tmp_path: Path) -> None:
    case = {
        "probes": ["semantics"],
        "dtype": "bfloat16",
        "trainer": {"rounding": 0.1},
        "sampling": {"temperature": 1.0},
    }
    report = run_rules(run_probe_case(case, tmp_path), RULES)
    assert {(finding.code, finding.severity) for finding in report.findings} == {("PRB005", "info")}
    assert report.exit_code() == 0
    assert any(row[0] == "the trainer against its own float32" for section in report.sections for row in section.rows)
