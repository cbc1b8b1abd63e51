"""Every metric against numbers computed by hand."""

from __future__ import annotations

import json
from math import exp, inf, log, nan

import msgspec
import numpy as np
import pytest

from ckptcheck.rollouts import Metadata, Rollout, Rollouts, build_rollouts, write_rollouts
from ckptcheck.rollouts.metrics import ClipBounds, NoiseFloor, average_directions, compute_metrics
from ckptcheck.rollouts.metrics import noise_floor as floors
from tests.factories.rollout_cases import draw_rollouts
from tests.paths import DATA

HALF, QUARTER, EIGHTH = log(0.5), log(0.25), log(0.125)


def two(engine: list[float], trainer: list[float], *, by: str = "engine", prompt: int = 1) -> Rollouts:
    """One sequence of a prompt and as many tokens as there are logprobs; in float64, so that hand and machine agree."""
    tokens = list(range(prompt + len(engine)))
    return build_rollouts(
        [Rollout(tokens, prompt, engine=engine, trainer=trainer)],
        Metadata(sampled_by=by),
        double=True,  # type: ignore[arg-type]
    )


def test_by_hand() -> None:
    # engine 1/2, 1/4; trainer 1/4, 1/2: ratios 1/2 and 2, |r| = log 2 both times
    found = compute_metrics(two([HALF, QUARTER], [QUARTER, HALF]))
    assert found is not None
    assert found.tokens == 2
    assert found.mult_prob_error == pytest.approx(2.0)
    assert found.k1 == pytest.approx(0.0)  # it cancels, and hides the gap
    assert found.k2 == pytest.approx(log(2) ** 2 / 2)
    assert found.k3 == pytest.approx(((0.5 - 1 + log(2)) + (2 - 1 - log(2))) / 2)
    assert found.ratio == pytest.approx(1.25)
    assert found.deviation == pytest.approx(2500)
    assert found.clipped == 1.0
    assert found.chi2 == pytest.approx((0.25 + 4) / 2 - 1)
    assert found.ess == pytest.approx(1.25**2 / 2.125)
    assert found.abs_mean == pytest.approx(log(2))
    assert found.abs_max == pytest.approx(log(2))
    assert found.prob_diff_mean == pytest.approx(0.25)
    assert found.prob_diff_max == pytest.approx(0.25)
    assert found.prob_diff_std == pytest.approx(0, abs=1e-7)
    assert found.pearson == pytest.approx(-1.0)
    assert found.engine_mean == found.trainer_mean == pytest.approx(log(0.125) / 2)
    assert found.numbers()["abs_p50"] == pytest.approx(log(2), rel=1e-6)


def test_the_other_direction_turns_the_ratio_round() -> None:
    engine, trainer = [HALF, HALF, EIGHTH], [QUARTER, HALF, HALF]
    one, other = compute_metrics(two(engine, trainer)), compute_metrics(two(engine, trainer, by="trainer"))
    assert one is not None
    assert other is not None
    assert one.k1 == pytest.approx((log(2) + 0 - log(4)) / 3)
    assert other.k1 == pytest.approx(-one.k1)
    assert one.ratio == pytest.approx((0.5 + 1 + 4) / 3)
    assert other.ratio == pytest.approx((2 + 1 + 0.25) / 3)
    assert one.ess == pytest.approx(((0.5 + 1 + 2) / 3) ** 2 / ((0.25 + 1 + 4) / 3))  # 4 is truncated to 2
    assert other.ess == pytest.approx(
        ((2 + 1 + 0.25) / 3) ** 2 / ((4 + 1 + 0.0625) / 3)
    )  # and 1/4 is kept, as in verl since 0.8.0
    assert one.mult_prob_error == other.mult_prob_error == pytest.approx((2 + 1 + 4) / 3)
    assert average_directions(one, other) == pytest.approx(7 / 3)
    with pytest.raises(ValueError, match="both were drawn from the engine"):
        average_directions(one, one)


def test_clipping_is_beyond_a_fifth() -> None:
    found = compute_metrics(two([-1.0] * 4, [-1 + log(1.19), -1 + log(1.21), -1 + log(0.81), -1 + log(0.79)]))
    assert found is not None
    assert found.clipped == 0.5


def test_means_of_tokens_and_of_sequences_differ() -> None:
    rollouts = build_rollouts([Rollout([1, 2], 1, [-1.0], [-1.5]), Rollout([1, 2, 3, 4], 1, [-1.0] * 3, [-1.1] * 3)])
    found = compute_metrics(rollouts)
    assert found is not None
    assert found.abs_mean == pytest.approx((0.5 + 3 * 0.1) / 4)
    assert found.abs_sequence_mean == pytest.approx((0.5 + 0.1) / 2)
    assert found.sequence_tokens.tolist() == [1, 3]
    assert found.sequence_error.tolist() == pytest.approx([exp(0.5), exp(0.1)])


def test_the_mask_decides() -> None:
    rollouts = build_rollouts([Rollout([1, 2, 3, 4], 1, [-1.0, -9.0, -1.0], [-1.5, -1.0, -1.5], mask=[1, 0, 1])])
    found = compute_metrics(rollouts)
    assert found is not None
    assert (found.tokens, found.abs_max) == (2, 0.5)


def test_the_first_token_is_never_compared() -> None:
    rollouts = build_rollouts([Rollout([1, 2], 0, [-5.0, -1.0], [-1.0, -1.0])])
    found = compute_metrics(rollouts)
    assert found is not None
    assert (found.tokens, found.abs_max) == (1, 0.0)


def test_nothing_to_compare() -> None:
    assert compute_metrics(build_rollouts([Rollout([1, 2], 2, [], [])])) is None
    assert compute_metrics(build_rollouts([Rollout([1, 2], 1, [-1.0], [-1.0], mask=[0])])) is None
    assert compute_metrics(two([nan, -inf], [-1.0, -1.0])) is None


def test_what_is_not_finite_is_counted_and_left_out() -> None:
    found = compute_metrics(two([-1.0, nan, -inf, -1.0], [-1.0, -1.0, -1.0, -2.0]))
    assert found is not None
    assert (found.tokens, found.broken, found.abs_mean) == (2, 2, 0.5)


def test_an_overflow_is_infinite_and_no_warning() -> None:
    found = compute_metrics(two([-1.0, -1.0], [-2000.0, -1.0]))
    assert found is not None
    assert found.mult_prob_error == inf
    assert found.k3 == pytest.approx((1999 - 1) / 2)  # the ratio goes to 0, k3 stays finite
    other = compute_metrics(two([-2000.0, -1.0], [-1.0, -1.0]))
    assert other is not None
    assert other.k3 == other.ratio == inf
    assert 0 < other.ess <= 1


def test_constant_probabilities_have_no_correlation() -> None:
    found = compute_metrics(two([-1.0, -1.0], [-1.0, -1.0]))
    assert found is not None
    assert found.pearson is None
    assert found.prob_diff_max == 0


def test_the_profile_counts_from_the_first_token_of_the_response() -> None:
    found = compute_metrics(two([-1.0] * 9, [-1.0 - n / 8 for n in range(9)], prompt=5))
    assert found is not None
    assert [(place, tokens) for place, tokens, _, _ in found.profile] == [(0, 1), (1, 1), (2, 2), (4, 4), (8, 1)]
    assert [apart for _, _, apart, _ in found.profile] == [0, 1 / 8, 2.5 / 8, 5.5 / 8, 1]
    assert [signed for _, _, _, signed in found.profile] == [0, -1 / 8, -2.5 / 8, -5.5 / 8, -1]


def test_the_worst_tokens_are_named() -> None:
    trainer = [-1.0] * 40
    trainer[7], trainer[30] = -4.0, -2.0
    found = compute_metrics(two([-1.0] * 40, trainer, prompt=2))
    assert found is not None
    assert [(place.position, place.token, place.abs_diff) for place in found.worst[:2]] == [(9, 9, 3.0), (32, 32, 1.0)]
    assert len(found.worst) == 10


def test_blocks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    from ckptcheck.rollouts import rollouts as module

    draw = np.random.default_rng(1)
    made = [
        Rollout(draw.integers(0, 9, 20).tolist(), 3, (-draw.random(17)).tolist(), (-draw.random(17)).tolist())
        for _ in range(50)
    ]
    whole = compute_metrics(build_rollouts(made))
    monkeypatch.setattr(module.Rollouts.blocks, "__defaults__", (33,))
    parts = compute_metrics(build_rollouts(made))
    assert whole is not None
    assert parts is not None
    for name, value in whole.numbers().items():
        assert parts.numbers()[name] == pytest.approx(value, rel=1e-12), name
    assert whole.worst == parts.worst
    assert np.array_equal(whole.sequence_error, parts.sequence_error)


def test_against_a_loop_over_tokens() -> None:
    draw = np.random.default_rng(2)
    q = (-draw.exponential(1, 500)).tolist()
    p = [min(0.0, value + 0.1 * noise) for value, noise in zip(q, draw.standard_normal(500), strict=True)]
    found = compute_metrics(two(q, p))
    assert found is not None
    pairs = list(zip(q, p, strict=True))
    assert found.mult_prob_error == pytest.approx(sum(exp(abs(b - a)) for a, b in pairs) / 500)
    assert found.k3 == pytest.approx(sum(exp(b - a) - 1 - (b - a) for a, b in pairs) / 500)
    assert found.pearson == pytest.approx(float(np.corrcoef(np.exp(q), np.exp(p))[0, 1]))
    assert found.prob_diff_std == pytest.approx(float(np.abs(np.exp(q) - np.exp(p)).std(ddof=1)))
    assert found.numbers()["abs_p99"] == pytest.approx(float(np.percentile(np.abs(np.subtract(p, q)), 99)), rel=1e-6)


def test_a_floor_is_written_and_measured(tmp_path) -> None:  # type: ignore[no-untyped-def]
    rollouts = two([-1.0, -1.0], [-1.01, -1.0])
    found = compute_metrics(rollouts)
    assert found is not None
    floor = NoiseFloor.of({"engine-repeat": found}, model="org/m")
    floors.write_noise_floor(floor, tmp_path / "floor.json")
    assert floors.read_noise_floor(tmp_path / "floor.json") == floor
    write_rollouts(rollouts, tmp_path / "r.safetensors")
    assert floors.read_noise_floor(tmp_path / "r.safetensors").metrics == floor.metrics
    twice = compute_metrics(two([-1.0, -1.0], [-1.02, -1.0]))
    assert twice is not None
    for name in floors.COMPARED:
        assert floor.multiple(name, getattr(twice, name)) == pytest.approx(2, rel=0.02), name
    assert NoiseFloor({"k3": 0.0}).multiple("k3", 1.0) is None
    (tmp_path / "other.json").write_text(msgspec.json.encode({"a": 1}).decode())
    with pytest.raises(Exception, match=r"other.json is no floor"):
        floors.read_noise_floor(tmp_path / "other.json")


@pytest.mark.parametrize("odd", [360.0, 500.0, 709.0, 800.0, 1e30, 1e308, -1e308])
def test_what_is_no_logprob_is_measured_all_the_same(odd: float) -> None:
    # e^360 squared is beyond a float: sums are infinite then, and no exception
    for engine, trainer in (([odd, -1.0], [-0.5, -1.0]), ([-0.5, -1.0], [odd, -1.0]), ([odd, -odd], [-odd, odd])):
        found = compute_metrics(two(engine, trainer))
        assert found is not None
        assert found.tokens == 2
        assert found.abs_max > 300
        assert found.pearson is None or -1 <= found.pearson <= 1


def test_correlation_of_large_numbers_is_one() -> None:
    found = compute_metrics(two([300.0, 1.0, 2.0], [300.0, 1.0, 2.0]))
    assert found is not None
    assert found.pearson == pytest.approx(1.0)  # the product of both variances is beyond a float


def ratios(*sequences: list[float], by: str = "engine", **about: float) -> Rollouts:
    """Sequences whose tokens have these policy ratios."""
    rows = []
    for each in sequences:
        logs = [log(ratio) for ratio in each]
        one, other = [-9.0] * len(each), [-9.0 + value for value in logs]
        engine, trainer = (one, other) if by == "engine" else (other, one)
        rows.append(Rollout(list(range(len(each) + 1)), 1, engine=engine, trainer=trainer))
    return build_rollouts(rows, Metadata(sampled_by=by, **about), double=True)  # type: ignore[arg-type]


@pytest.mark.parametrize("by", ["engine", "trainer"])
def test_clip_rates_of_tokens_and_of_sequences_by_hand(by: str) -> None:
    found = compute_metrics(ratios([0.7, 1.1, 1.3, 1.0], [1.25, 1.26], by=by), clip=ClipBounds(0.2, 0.28))
    assert found is not None
    # below 0.8: one of six; above 1.28: one of six; the geometric means are 1.0002 and 1.255
    assert (found.clipped_low, found.clipped_high) == pytest.approx((1 / 6, 1 / 6))
    assert found.clipped == pytest.approx(2 / 6)
    assert found.clamp_log_ratio == pytest.approx((2 / 4 + 0 / 2) / 2)
    assert found.clipped_sequences == 0
    tight = compute_metrics(ratios([0.7, 1.1, 1.3, 1.0], [1.25, 1.26], by=by), clip=ClipBounds(3e-4, 4e-4))
    assert tight is not None
    assert tight.clipped == pytest.approx(5 / 6)
    assert tight.clipped_sequences == 1 / 2


def test_the_file_says_where_its_objective_clips() -> None:
    found = compute_metrics(ratios([0.7, 1.1, 1.3], clip_low=0.05, clip_high=0.05))
    assert found is not None
    assert found.clip == ClipBounds(0.05, 0.05)
    assert found.clipped == 1.0
    half = compute_metrics(ratios([0.7, 1.1, 1.3], clip_high=0.05))
    assert half is not None
    assert half.clip == ClipBounds(0.2, 0.05)


@pytest.mark.parametrize("number", range(4))
def test_pipelinerl_computes_the_same(number: int) -> None:
    """Its own `rl_step` computed the metrics of this batch: fixtures/pipelinerl_metrics.py."""
    record = json.loads((DATA / "rollouts" / "pipelinerl-metrics.json").read_text())
    loss, sequences = record["losses"][number], record["sequences"]
    rollouts = build_rollouts(
        [
            Rollout(each["tokens"], each["prompt"], each["engine"], each["trainer"], reward=each["reward"])
            for each in sequences
        ],
        Metadata(clip_low=loss["epsilon_low"], clip_high=loss["epsilon_high"]),
    )
    found, theirs = compute_metrics(rollouts), loss["metrics"]
    assert found is not None
    clipped = found.clamp_log_ratio if loss["policy_loss"] == "ppo" else found.clipped_sequences
    assert clipped == pytest.approx(theirs["clamp_log_ratio_new_old_indicator"], abs=1e-6)
    assert clipped > 0
    assert found.abs_sequence_mean == pytest.approx(theirs["mean_abs_log_ratio_new_old"], rel=1e-5)
    assert found.ratio * found.tokens == pytest.approx(theirs["ratio_new_old_sum"], rel=1e-5)
    # its estimate of the effective sample size, from the ratios as they are; ours clamps them as verl does
    assert found.ratio**2 / (found.chi2 + 1) == pytest.approx(
        theirs["ratio_new_old_sum"] ** 2 / theirs["ratio_new_old_squared_sum"] / found.tokens, rel=1e-5
    )


def test_percentiles_are_those_of_numpy() -> None:
    draw = np.random.default_rng(0)
    for number in (1, 2, 3, 10, 101, 1000, 4321):
        rollouts = draw_rollouts(sequences=1, response=number)
        values = -draw.exponential(10.0 ** draw.integers(-6, 6), len(rollouts.tokens)).astype(np.float32)
        found = compute_metrics(rollouts.with_columns(trainer_logprobs=values))
        assert found is not None
        (block,) = rollouts.blocks()
        gaps = np.abs(values.astype(float) - rollouts.columns["engine_logprobs"])[block.mask].astype(np.float32)
        assert [*found.percentiles.values()] == np.percentile(gaps, [*found.percentiles]).tolist()
