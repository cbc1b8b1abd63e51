"""From a job to its tables: both sides in one row, with the place of each value."""

from __future__ import annotations

from ckptcheck.jobs.document import Leaf
from ckptcheck.jobs.job import Job, Setting
from ckptcheck.linter.pictures import NoPicture, Picture, TextTable
from ckptcheck.linter.report import Report
from ckptcheck.reporters import render
from ckptcheck.reporters.evidence_pictures import draw_pictures
from tests.factories.pictures import HOSTILE

LATE = Setting(status="unresolved", source="set under a condition", leaf=Leaf(None, "sleep", "job.yaml", 7))


def written(value: object, key: str, line: int = 1) -> Setting:
    return Setting(value, "set", leaf=Leaf(value, key, "job.yaml", line))


def draw(job: Job) -> tuple[Picture, ...]:
    return draw_pictures(job)


def rows_of(picture: Picture) -> dict[str, list[tuple[str, str, str]]]:
    assert isinstance(picture, TextTable)
    return {row[0].text: [(cell.text, cell.state, cell.note) for cell in row[1:]] for row in picture.rows}


def test_counterparts_stand_in_one_row() -> None:
    job = Job(
        "job.yaml",
        "verl",
        settings={
            "trainer.temperature": written(1.0, "actor.temperature", 3),
            "rollout.temperature": written(0.7, "rollout.temperature", 9),
            "engine.dtype": Setting("auto", "default", "default of vLLM 0.32.0"),
            "trainer.dtype": written("float32", "actor.dtype", 4),
            "engine.sleep_level": LATE,
            "trainer.tp": written(2, "actor.tp"),
            "engine.tp": written(4, "rollout.tp"),
            "algorithm.lag": written(1, "lag", 12),
            "trainer.pp": Setting(),
        },
    )
    sides, rest = draw(job)
    assert rows_of(sides) == {
        "dtype": [("float32", "", "actor.dtype, job.yaml:4"), ("auto", "default", "default of vLLM 0.32.0")],
        "temperature": [
            ("1", "differs", "actor.temperature, job.yaml:3"),
            ("0.7", "differs", "rollout.temperature, job.yaml:9"),
        ],
        "tensor parallelism": [("2", "", "actor.tp, job.yaml:1"), ("4", "", "rollout.tp, job.yaml:1")],
        "engine.sleep_level": [("", "", ""), ("sleep", "not resolved", "job.yaml:7: set under a condition")],
    }
    assert rows_of(rest) == {"algorithm.lag": [("1", "", "lag, job.yaml:12")]}


def test_a_cell_has_the_key_that_findings_name() -> None:
    (sides,) = draw(Job("job.yaml", "verl", settings={"engine.dtype": written("float16", "rollout.dtype")}))
    assert isinstance(sides, TextTable)
    assert sides.rows[0][2].name == "rollout.dtype"


def test_equal_sides_do_not_differ() -> None:
    both = {side: written("bfloat16", "dtype") for side in ("trainer.dtype", "engine.dtype")}
    (sides,) = draw(Job("job.yaml", "verl", settings=both))
    assert rows_of(sides)["dtype"] == [("bfloat16", "", "dtype, job.yaml:1")] * 2


def test_an_unread_job_says_that_nothing_is_known() -> None:
    (sides,) = draw(Job("job.yaml", "verl"))
    assert sides == NoPicture("Both sides, side by side", "no setting of either side is known")


def test_keys_and_values_are_only_text() -> None:
    job = Job(
        "job.yaml", "verl", settings={"engine.dtype": written(HOSTILE, HOSTILE), "update.mode": written(HOSTILE, "x")}
    )
    page = render("html", [Report("job", pictures=draw(job))], ())
    assert "<img" not in page
    assert "\u202e" not in page


def test_drawing_asks_for_nothing_that_a_rule_asks_for() -> None:
    job = Job("job.yaml", "verl", settings={"engine.dtype": Setting(status="unresolved", source="why")})
    draw(job)
    assert job.asked_unresolved == []
