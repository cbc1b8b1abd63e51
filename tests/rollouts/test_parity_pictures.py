"""From rollouts, matrices and searches to pictures: the numbers that a reader sees are those of the evidence."""

from __future__ import annotations

from functools import partialmethod
from math import exp, inf, isclose

import pytest

from ckptcheck.linter.evidence import Evidence
from ckptcheck.linter.pictures import Curves, HeatMap, Histogram, NoPicture, Picture, TextTable
from ckptcheck.linter.report import Report
from ckptcheck.reporters import render
from ckptcheck.reporters.evidence_pictures import draw_pictures
from ckptcheck.rollouts import Metadata, Rollout, Rollouts, build_rollouts
from ckptcheck.rollouts.rollout_evidence import RolloutEvidence
from ckptcheck.rollouts.run_comparison import RunComparison
from ckptcheck.rollouts.series import RolloutSeries
from ckptcheck.rollouts.series_member import SeriesMember
from ckptcheck.rollouts.thresholds import Thresholds
from tests.factories.parity_matrix_cases import build_matrix
from tests.factories.pictures import HOSTILE
from tests.factories.rollout_cases import draw_rollouts


def draw(evidence: Evidence) -> tuple[Picture, ...]:
    pictures = draw_pictures(evidence)
    assert not [picture for picture in pictures if isinstance(picture, NoPicture)]
    return pictures


def two_sequences(sampled_by: str = "engine") -> RolloutEvidence:
    """Two responses of two tokens: the engine says -1 of each, the trainer is off by 0.5 at one and by -0.25 at another."""
    rows = [
        Rollout([5, 6, 7, 8], 2, [-1.0, -1.0], [-0.5, -1.0]),
        Rollout([5, 6, 7, 9], 2, [-1.0, -1.0], [-1.0, -1.25]),
    ]
    return RolloutEvidence("rollouts", build_rollouts(rows, Metadata("made", sampled_by=sampled_by), double=True))


def test_each_token_is_in_one_bin_and_in_one_cell() -> None:
    histogram, density, _, _ = draw(two_sequences())
    assert isinstance(histogram, Histogram)
    (counts,) = histogram.series
    assert (len(histogram.edges), len(counts.values), sum(counts.values)) == (22, 21, 4)
    assert (counts.values[10], counts.values[20], counts.values[5]) == (2, 1, 1)
    assert isinstance(density, HeatMap)
    # the engine's logprobs are all the same; the trainer's are in the rows, the likeliest at the top
    assert {cell.value for cell in density.cells.values()} == {1.0, 2.0}
    assert len({column for _, column in density.cells}) == 1
    by_row = [(float(density.rows[row]), cell.value) for (row, _), cell in sorted(density.cells.items())]
    assert by_row == [
        (pytest.approx(-0.5, abs=0.02), 1),
        (pytest.approx(-1, abs=0.02), 2),
        (pytest.approx(-1.25, abs=0.03), 1),
    ]


@pytest.mark.parametrize(("sampled_by", "sign"), [("engine", 1), ("trainer", -1)])
def test_kl_by_position_has_the_direction_of_the_draw(sampled_by: str, sign: int) -> None:
    curves = draw(two_sequences(sampled_by))[2]
    assert isinstance(curves, Curves)
    kl, difference = curves.series
    assert curves.x == (0, 1)
    expected = [(exp(sign * ratio) - 1 - sign * ratio) / 2 for ratio in (0.5, -0.25)]
    assert all(value is not None and isclose(value, wanted) for value, wanted in zip(kl.values, expected, strict=True))
    assert difference.values == (0.25, 0.125)
    assert kl.name == ("KL(engine ‖ trainer), k3" if sign == 1 else "KL(trainer ‖ engine), k3")


def test_the_worst_tokens_stand_in_their_text() -> None:
    table = draw(two_sequences())[3]
    assert isinstance(table, TextTable)
    first, second = table.rows
    assert [cell.text for cell in first] == ["5 6▸7◂8", "0.5", "-1", "-0.5", "sequence 0, token 2"]
    assert [cell.text for cell in second] == ["5 6 7▸9◂", "0.25", "-1", "-1.25", "sequence 1, token 3"]
    assert (first[1].state, second[1].state) == ("trainer: likelier", "trainer: less likely")


def test_the_text_of_a_token_is_only_text() -> None:
    plain = two_sequences()
    evidence = RolloutEvidence(
        HOSTILE, plain.rollouts, decode=lambda token: HOSTILE, decode_text=lambda tokens: HOSTILE * len(tokens)
    )
    page = render("html", [Report(HOSTILE, pictures=draw(evidence))], ())
    assert "<img" not in page
    assert "\u202e" not in page


def test_rollouts_of_one_side_have_no_pictures() -> None:
    assert draw(RolloutEvidence("rollouts", draw_rollouts(trainer=False))) == ()


def test_equal_sides_have_no_worst_token() -> None:
    pictures = draw(RolloutEvidence("rollouts", draw_rollouts(noise=0.0)))
    assert [type(picture) for picture in pictures] == [Histogram, HeatMap, Curves]


def test_a_matrix_is_set_ups_by_lengths() -> None:
    (picture,) = draw(build_matrix({"errors": {"100": 1.001, "1000": 1.2, "10000": inf}, "floor": 1.0005}))
    assert isinstance(picture, HeatMap)
    assert (picture.rows, picture.columns) == (("real, greedy, batch 1",), ("100", "1,000", "10,000"))
    good, bad, broken = (picture.cells[0, column] for column in range(3))
    assert [cell.state for cell in (good, bad, broken)] == ["within the limit", "beyond the limit", "not comparable"]
    assert good.value == pytest.approx(0.001)
    assert good.note.endswith(", 2 times the floor")
    assert broken.value is None


def make_series(biases: list[float]) -> RolloutSeries:
    members = [
        SeriesMember.of(RolloutEvidence(f"step{step}", draw_rollouts(bias=bias, seed=step, metadata={"step": step})))
        for step, bias in enumerate(biases)
    ]
    return RolloutSeries.of(members, Thresholds())


def test_a_series_has_a_curve_for_each_metric() -> None:
    series = make_series([0.0, -0.1, -0.2])
    pictures = {picture.title: picture for picture in draw(series)}
    picture = pictures["mult_prob_error over the steps"]
    assert isinstance(picture, Curves)
    assert picture.x == (0, 1, 2)
    assert picture.series[0].values == tuple(gap.mult_prob_error for gap in series.gaps)
    assert draw(make_series([0.0])) == ()


def test_a_run_that_parts_is_marked_where_it_does() -> None:
    comparison = RunComparison(make_series([0.0] * 4 + [-0.3] * 4), make_series([0.0] * 8))
    pictures = {picture.title: picture for picture in draw(comparison)}
    picture = pictures["mult_prob_error: the run and its reference"]
    assert isinstance(picture, Curves)
    (mark,) = picture.marks
    assert (mark.series, mark.index, mark.text) == ("run", 4, "diverges at step 4")


def test_pictures_do_not_depend_on_the_size_of_the_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    evidence = RolloutEvidence("rollouts", draw_rollouts(sequences=12))
    whole = draw(evidence)
    monkeypatch.setattr(Rollouts, "blocks", partialmethod(Rollouts.blocks, size=1))
    assert draw(evidence) == whole
