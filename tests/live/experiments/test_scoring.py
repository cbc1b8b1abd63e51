"""Record, score and calibrate on the fake engine and trainer: batches, temperatures, whole distributions, damage."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest

from ckptcheck.errors import CkptcheckError
from ckptcheck.live.experiments.calibrate import calibrate
from ckptcheck.live.experiments.record import record_rollouts
from ckptcheck.live.experiments.scoring import batch_by_length, score_rollouts
from ckptcheck.live.runtime.engines.engine_options import Switches
from ckptcheck.live.runtime.engines.sampling import Sampling
from ckptcheck.rollouts import Metadata, Rollouts, read_rollouts, write_rollouts
from ckptcheck.rollouts.expert_routing import add_expert_routing
from ckptcheck.rollouts.full_vocab import add_full_vocab_logprobs, first
from ckptcheck.rollouts.gap_summary import summarize_gap
from ckptcheck.rollouts.metrics import noise_floor
from ckptcheck.rollouts.rollout_evidence import RolloutEvidence
from tests.doubles.fake_serving import FakeServing
from tests.factories.probe_cases import PROMPTS, ScoringTrainer
from tests.factories.refit_cases import VOCABULARY, weights
from tests.factories.rollout_cases import draw_rollouts

SAMPLED = Sampling(0.7, max_tokens=6, seed=5)


def recorded(engine: FakeServing, **about: object) -> Rollouts:
    return record_rollouts(engine, PROMPTS, SAMPLED, Metadata(model="tiny", vocabulary=VOCABULARY, **about), batch=2)


def test_what_is_recorded_can_be_written_and_read(tmp_path: Path) -> None:
    write_rollouts(recorded(FakeServing(weights()), logprobs="raw"), tmp_path / "r.safetensors")
    found = read_rollouts(tmp_path / "r.safetensors")
    assert not found.defects
    assert found.sequence_count == 3
    assert found.prompt_lengths.tolist() == [4, 6, 3]
    assert found.metadata.engine is not None
    assert (found.metadata.engine.name, found.metadata.sampling.temperature) == ("fake", 0.7)
    assert found.metadata.versions == ["0"]
    assert "trainer_logprobs" not in found


def test_the_same_seed_records_the_same_and_prompts_differ() -> None:
    one, two = (recorded(FakeServing(weights())) for _ in range(2))
    assert one.tokens.tolist() == two.tokens.tolist()
    other = record_rollouts(FakeServing(weights()), PROMPTS, replace(SAMPLED, seed=6), Metadata())
    assert other.tokens.tolist() != one.tokens.tolist()


def test_a_trainer_scores_at_the_temperature_of_the_engines_logprobs(tmp_path: Path) -> None:
    trainer = ScoringTrainer(tmp_path)
    for logprobs, heat in (("raw", 1.0), ("processed", 0.7)):
        engine = FakeServing(weights(), switches=Switches(logprobs=logprobs))
        found = score_rollouts(recorded(engine, logprobs=logprobs), trainer)
        assert found.metadata.trainer is not None
        assert found.metadata.trainer.temperature == heat
        under = np.concatenate(
            [np.arange(found.sequence(n).start + p, found.sequence(n).stop) for n, p in enumerate(found.prompt_lengths)]
        )
        apart = np.abs(found.columns["engine_logprobs"] - found.columns["trainer_logprobs"])[under]
        assert apart.max() < 1e-5
    wrong = score_rollouts(recorded(FakeServing(weights()), logprobs="raw"), trainer, temperature=0.7)
    assert np.abs(wrong.columns["engine_logprobs"] - wrong.columns["trainer_logprobs"])[under].max() > 0.1


def test_batches_are_of_like_length_and_bounded() -> None:
    rollouts = draw_rollouts(sequences=40)
    lengths = np.diff(rollouts.starts)
    seen: list[int] = []
    for batch in batch_by_length(rollouts, 200):
        assert len(batch) == 1 or int(lengths[batch].max()) * len(batch) <= 200
        seen += batch
    assert sorted(seen) == list(range(40))
    assert [len(batch) for batch in batch_by_length(rollouts, 1)] == [1] * 40


def test_whole_distributions_are_those_of_the_tokens_they_are_said_of(tmp_path: Path) -> None:
    engine, trainer = FakeServing(weights()), ScoringTrainer(tmp_path)
    rollouts = add_full_vocab_logprobs(recorded(engine), "engine", engine, tmp_path, number=8)
    places = rollouts.columns["full_positions"]
    assert places.tolist() == first(rollouts, 8).tolist() == [4, 5, 6, 7, 8, 9, 16, 17]
    rows = rollouts.columns["engine_full_logprobs"]
    assert rows.shape == (8, VOCABULARY)
    assert rows[np.arange(8), rollouts.tokens[places]] == pytest.approx(
        rollouts.columns["engine_logprobs"][places], abs=1e-6
    )
    scored = score_rollouts(rollouts, trainer, folder=tmp_path)
    assert scored.columns["trainer_full_logprobs"] == pytest.approx(rows, abs=1e-5)
    assert (
        add_full_vocab_logprobs(recorded(engine), "trainer", trainer, tmp_path).columns.keys()
        == recorded(engine).columns.keys()
    )


def test_whole_distributions_are_taken_at_the_temperature_of_the_logprobs(tmp_path: Path) -> None:
    engine = FakeServing(weights())
    rollouts = add_full_vocab_logprobs(recorded(engine, logprobs="raw"), "engine", engine, tmp_path, number=8)
    off = score_rollouts(rollouts, ScoringTrainer(tmp_path), temperature=0.5, version=7, folder=tmp_path)
    assert off.metadata.trainer is not None
    assert off.metadata.trainer.weight_version == "7"
    rows, places = off.columns["trainer_full_logprobs"], off.columns["full_positions"]
    assert np.exp(rows.astype(np.float64)).sum(1) == pytest.approx(1)
    assert rows[np.arange(8), off.tokens[places]] == pytest.approx(off.columns["trainer_logprobs"][places], abs=1e-5)
    found = RolloutEvidence("r", off)
    assert found.temperature_fit is not None
    assert found.temperature_fit.temperature == pytest.approx(2, rel=1e-3)
    assert found.exact_kl is not None
    assert found.exact_kl.engine_trainer > 0.05


def test_a_first_token_has_no_distribution(tmp_path: Path) -> None:
    engine = FakeServing(weights())
    rollouts = add_full_vocab_logprobs(recorded(engine), "engine", engine, tmp_path, number=8)
    places = rollouts.columns["full_positions"].copy()
    places[6] = int(rollouts.starts[1])
    with pytest.raises(CkptcheckError, match="it names the first token of a sequence"):
        write_rollouts(rollouts.with_columns(None, full_positions=places), tmp_path / "r.safetensors")


def test_routing_is_kept_by_token_and_left_out_where_nobody_tells(tmp_path: Path) -> None:
    engine = FakeServing(weights())
    rollouts = add_expert_routing(recorded(engine), "engine", engine)
    assert rollouts.columns["engine_routing"].shape == (len(rollouts.tokens), 2, 2)
    scored = score_rollouts(rollouts, ScoringTrainer(tmp_path))
    assert (scored.columns["trainer_routing"] == scored.columns["engine_routing"]).all()
    mute = FakeServing(weights(), ["mute"])
    assert "engine_routing" not in add_expert_routing(recorded(mute), "engine", mute)


def test_a_damaged_file_is_not_scored(tmp_path: Path) -> None:
    write_rollouts(recorded(FakeServing(weights())), tmp_path / "r.safetensors")
    (tmp_path / "r.safetensors").write_bytes((tmp_path / "r.safetensors").read_bytes()[:-30])
    with pytest.raises(CkptcheckError, match="cannot be scored"):
        score_rollouts(read_rollouts(tmp_path / "r.safetensors"), ScoringTrainer(tmp_path))


def test_a_floor_is_measured_side_by_side_and_can_be_judged_by(tmp_path: Path) -> None:
    noise = calibrate(FakeServing(weights()), ScoringTrainer(tmp_path), PROMPTS, response=6)
    assert all(each.abs_max < 1e-5 for each in noise.metrics.values())
    off = calibrate(FakeServing(weights(), ["drift"]), ScoringTrainer(tmp_path, padding=True), PROMPTS, response=6)
    assert off.metrics["engine-repeat"].abs_max == 0
    assert off.metrics["engine-decode"].abs_max == pytest.approx(0.1, abs=1e-5)
    assert off.metrics["trainer-batch"].abs_max == pytest.approx(0.2, abs=1e-5)
    off.write(tmp_path / "floor.json", model="tiny", engine="fake", trainer="fake")
    least = noise_floor.read_noise_floor(tmp_path / "floor.json")
    assert least.metrics["mult_prob_error"] == max(each.mult_prob_error for each in off.metrics.values())
    assert len(off.section().rows) == 6
    alone = calibrate(None, ScoringTrainer(tmp_path), PROMPTS, response=6)
    assert set(alone.metrics) == {"trainer-repeat", "trainer-batch"}


def test_a_floor_of_a_trainer_that_gives_no_numbers_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = ScoringTrainer(tmp_path)
    monkeypatch.setattr(trainer, "score", lambda asked, **_: [(float("nan"),) * (len(each) - 1) for each in asked])
    noise = calibrate(FakeServing(weights()), trainer, PROMPTS, response=6)
    assert noise.failed_comparisons == ("trainer-repeat", "trainer-batch", "trainer-engine")
    with pytest.raises(CkptcheckError, match="logprobs of the trainer, twice the same are not finite"):
        noise.write(tmp_path / "floor.json")
    assert not (tmp_path / "floor.json").exists()


def test_nothing_compared_and_what_is_not_finite_are_infinitely_far_apart() -> None:
    for one, other in (([], []), ([()], [()]), ([(1.0,)], [(1.0, 2.0)]), ([(float("nan"),)], [(1.0,)])):
        assert summarize_gap(one, other).mult_prob_error == float("inf")
    found = summarize_gap([(-1.0, -2.0)], [(-1.5, -2.0)])
    assert (found.tokens, found.mean, found.largest) == (2, 0.25, 0.5)
    assert found.mult_prob_error == pytest.approx((np.exp(0.5) + 1) / 2)


def test_metadata_that_a_converter_wrote_survive(tmp_path: Path) -> None:
    rollouts = recorded(FakeServing(weights()))
    kept = rollouts.with_columns(msgspec.structs.replace(rollouts.metadata, step=7, source="elsewhere"))
    found = score_rollouts(kept, ScoringTrainer(tmp_path))
    assert (found.metadata.step, found.metadata.source) == (7, "elsewhere")
