"""From outputs of modules to pictures."""

from __future__ import annotations

import pytest

from ckptcheck.linter.pictures import HeatMap, Picture
from ckptcheck.live.pictures import draw_course, draw_modules
from tests.factories.localize_cases import build_localization

ACT = "model.layers.1.mlp.act"


def states_of(picture: Picture | None) -> dict[str, str]:
    """Return name → state of the cells that stand alone."""
    assert isinstance(picture, HeatMap)
    return {cell.name: cell.state for cell in picture.cells.values() if not cell.members}


def test_the_module_at_which_two_sides_part() -> None:
    evidence = build_localization({"do": [{"point": ACT, "how": "factor", "by": 1.5}]})
    states = states_of(draw_modules(evidence, "Modules"))
    assert states[ACT] == "parts here"
    assert states["model.layers.1.mlp.up_proj"] == "equal"
    assert states["lm_head"] == "differs"
    course = draw_course(evidence, "Course")
    assert course is not None
    assert [course.x[mark.index] for mark in course.marks] == [ACT]
    values = course.series[0].values
    assert values[course.x.index(ACT)] == pytest.approx(0.5)


def test_an_output_that_only_one_side_has_and_one_with_nan() -> None:
    evidence = build_localization({"do": [{"point": ACT, "how": "absent"}, {"point": "model.norm", "how": "nan"}]})
    states = states_of(draw_modules(evidence, "Modules"))
    assert (states[ACT], states["model.norm"]) == ("not compared", "not finite")
