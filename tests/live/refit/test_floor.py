"""How near logprobs have to be is measured; what is nearer is no finding, what is farther is one."""

from __future__ import annotations

from dataclasses import replace
from math import inf, nan
from pathlib import Path
from typing import Any

import pytest

from ckptcheck.linter import rule_loader
from ckptcheck.linter.runner import run_rules
from ckptcheck.live.refit.logprob_diff import LogprobDiff, compare_logprobs
from ckptcheck.live.refit.noise_floor import SideNoise, TrialNoise, measure_noise_floor, measure_rounding
from ckptcheck.live.refit.observations import GreedyText
from ckptcheck.live.refit.trace import RefitTrace
from ckptcheck.live.refit.trace_queries import compare_scoring
from ckptcheck.live.runtime.engines.capabilities import find_able, why_unable
from tests.doubles.fake_engine import FakeEngine
from tests.factories.refit_cases import FakeTrainer, run_trial_case, weights

RULES = {rule.code: rule for rule in rule_loader.load_rules() if rule.on == "refit"}
SEQUENCES = [(9, 10, 11, 12), (20, 8, 31)]


def found(trace: RefitTrace, code: str) -> list[str]:
    return [finding.message for finding in run_rules(trace, [RULES[code]]).findings]


def test_runs_are_apart_by_the_most_and_on_average() -> None:
    assert compare_logprobs([[1.0, 2.0], [3.0]], [[1.0, 2.5], [2.0]]) == LogprobDiff(1.0, 0.5)
    assert compare_logprobs([], []) == LogprobDiff()
    assert compare_logprobs([[nan]], [[nan]]) == compare_logprobs([[1.0]], [[1.0, 2.0]]) == LogprobDiff(inf, inf)
    assert LogprobDiff(1, 4) | LogprobDiff(2, 3) == LogprobDiff(2, 4)
    assert not LogprobDiff(1, 4).within(LogprobDiff(2, 3))


def test_a_side_that_is_noisy_in_one_way_only_is_measured_so(tmp_path: Path) -> None:
    class Batched(FakeEngine):
        """Rounds otherwise where it computes one sequence alone."""

        def score(self, sequences: Any, *, decode: int = 0) -> Any:
            moved = 0.25 if len(sequences) == 1 else 0.0
            told = super().score(sequences, decode=decode)
            return [
                replace(each, prompt_logprobs=tuple(value + moved for value in each.prompt_logprobs)) for each in told
            ]

    floor = measure_noise_floor(Batched(weights()), FakeTrainer(tmp_path), SEQUENCES)
    assert floor.engine == SideNoise(batch=LogprobDiff(0.25, 0.25))
    assert floor.trainer == SideNoise()
    assert floor.trainer_tolerance == LogprobDiff(2.5, 0.75)
    assert floor.cold_load_tolerance == 1e-6


def test_an_engine_that_cannot_follow_tokens_is_measured_by_its_own(tmp_path: Path) -> None:
    class Speculating(FakeEngine):
        """Decodes with other logprobs than it scores, and takes no tokens from others."""

        def __init__(self) -> None:
            super().__init__(weights())
            self.info = replace(self.info, facts={**self.info.facts, "follows": "False"})

        def score(self, sequences: Any, *, decode: int = 0) -> Any:
            told = super().score(sequences, decode=decode)
            return [
                replace(each, decode_logprobs=tuple(value + 0.5 for value in each.decode_logprobs)) for each in told
            ]

        def follow(self, *_: Any) -> Any:
            raise AssertionError("it cannot")

    floor = measure_noise_floor(Speculating(), FakeTrainer(tmp_path), SEQUENCES)
    assert floor.engine.decode.mean == pytest.approx(0.5, abs=1e-3)
    assert floor.engine.repeat == floor.engine.batch == LogprobDiff()


def test_what_rounding_comes_to_grows_with_the_coarser_dtype(tmp_path: Path) -> None:
    fine = measure_rounding(FakeTrainer(tmp_path), ["float32", "float32"], SEQUENCES)
    coarse = measure_rounding(FakeTrainer(tmp_path), ["float32", "bfloat16"], SEQUENCES)
    assert 0 < fine.most < 1e-4 < coarse.most


@pytest.mark.parametrize(("most", "mean", "codes"), [(0.49, 0.029, 0), (0.51, 0.029, 1), (0.49, 0.031, 1)])
def test_trainer_and_engine_may_be_apart_by_a_multiple_of_the_floor(
    most: float, mean: float, codes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = run_trial_case({}, tmp_path / "trial")
    trace = replace(trace, noise_floor=TrialNoise(trainer=SideNoise(rounding=LogprobDiff(0.05, 0.01))))
    number = sum(len(each.prompt_logprobs) for each in trace.scorings[0].engine)
    rest = (mean * number - most) / (number - 1)
    first = [list(each.prompt_logprobs) for each in trace.scorings[0].engine]
    moved = [
        [value + (most if (row, at) == (0, 0) else rest) for at, value in enumerate(run)]
        for row, run in enumerate(first)
    ]
    scoring = replace(trace.scorings[0], trainer=tuple(map(tuple, moved)))
    assert compare_scoring(scoring).trainer.most == pytest.approx(most)
    assert compare_scoring(scoring).trainer.mean == pytest.approx(mean)
    assert len(found(replace(trace, scorings=(scoring,)), "REF012")) == codes


def test_a_trial_that_ended_before_is_not_judged_by_a_guess(tmp_path: Path) -> None:
    trace = replace(run_trial_case({"trainer": {"apart": True}}, tmp_path / "trial"), noise_floor=TrialNoise())
    report = run_rules(trace, [RULES["REF012"]])
    assert report.skipped == (("REF012", "the trial ended before it measured what rounding amounts to"),)


def test_logprobs_after_greedy_tokens_part_at_a_tie_are_not_compared(tmp_path: Path) -> None:
    trace = run_trial_case({}, tmp_path / "trial")
    scoring = trace.scorings[1]
    here = scoring.engine[0]
    tie = replace(
        here,
        decoded_tokens=(here.decoded_tokens[0], 31, 30, 29),
        decode_logprobs=(*here.decode_logprobs[:2], -9.0, -9.0),
    )
    scoring = replace(scoring, engine=(tie, *scoring.engine[1:]))
    assert found(replace(trace, scorings=(trace.scorings[0], scoring)), "REF010") == []
    surely = replace(tie, decode_logprobs=(here.decode_logprobs[0], here.decode_logprobs[1] - 0.1, -9.0, -9.0))
    scoring = replace(scoring, engine=(surely, *scoring.engine[1:]))
    assert len(found(replace(trace, scorings=(trace.scorings[0], scoring)), "REF010")) == 1


def test_greedy_text_of_both_sides_is_told_where_it_parts(tmp_path: Path) -> None:
    trace = run_trial_case({}, tmp_path / "trial")
    said = GreedyText((1, 2), (5, 6, 7), (5, 9, 7), 2.0, "a cat", "a dog")
    told = replace(trace, scorings=[replace(trace.scorings[0], greedy_text=said)])
    assert said.first_divergence == 1
    assert found(told, "REF017") == [
        "after a cold load, greedy decoding differs from the trainer's at token 2 of 3: the engine adds 6, the trainer 9, which it"
        " prefers by 2 nats: 'a cat', the trainer 'a dog'"
    ]
    lines = next(section.lines for section in told.sections if section.title.startswith("greedy"))
    assert lines == ("cold load: 'a cat'", "cold load  trainer: 'a dog'")


def test_an_engine_sleeps_where_it_can() -> None:
    assert why_unable(FakeEngine(weights(), device="cpu"), "sleep") == "the sleep of fake does nothing on a CPU"
    named = FakeEngine(weights(), device="cpu")
    named.info = replace(named.info, name="sglang")  # puts its buffers away and back there too
    assert find_able(named, "sleep") is named
    engine = FakeEngine(weights())
    assert find_able(engine, "sleep") is engine
    assert (
        why_unable(object.__new__(type("Plain", (), {"info": engine.info})), "sleep") == "fake is not put to sleep here"
    )


def test_memory_is_measured_after_every_sync(tmp_path: Path) -> None:
    assert len(run_trial_case({"settings": {"steps": 2}}, tmp_path / "trial").memory) == 1 + 5
