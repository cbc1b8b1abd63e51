"""From probes, outputs of modules and critics to pictures."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ckptcheck.linter.pictures import Curves, HeatMap, Picture, TextTable
from ckptcheck.live.pictures.critic_values import draw_gradients
from ckptcheck.live.pictures.module_outputs import draw_course, draw_modules
from ckptcheck.reporters.evidence_pictures import draw_pictures
from tests.factories.critic_cases import WEIGHTS, build_critic
from tests.factories.localize_cases import build_localization
from tests.factories.probe_cases import run_probe_case

ACT = "model.layers.1.mlp.act"


def states_of(picture: Picture | None) -> dict[str, str]:
    """Return name → state of the cells that stand alone."""
    assert isinstance(picture, HeatMap)
    return {cell.name: cell.state for cell in picture.cells.values() if not cell.members}


def test_probes_draw_what_they_measured(tmp_path: Path) -> None:
    trace = run_probe_case({"probes": ["decode", "inflight", "routing"]}, tmp_path / "probes")
    gaps, routing, responses = draw_pictures(trace)
    assert isinstance(gaps, HeatMap)
    assert "decode: one prefill" in gaps.rows
    assert "largest |Δ|" in gaps.columns
    assert isinstance(routing, Curves)
    assert [series.values for series in routing.series] == [(0.0, 0.0)]
    assert isinstance(responses, TextTable)
    result = trace.results["inflight"]
    for row, response in zip(responses.rows, result.responses, strict=True):  # type: ignore[attr-defined]
        numbers = [int(cell.text) for cell in row[1:4]]
        assert sum(numbers) == response.tokens
        assert numbers[2] == (0 if response.changed is None else response.tokens - response.changed)


def test_probes_with_faults_draw_how_large_they_are(tmp_path: Path) -> None:
    trace = run_probe_case({"probes": ["decode", "inflight", "routing"]}, tmp_path / "probes")
    decode, routing, inflight = (trace.results[name] for name in ("decode", "routing", "inflight"))
    response = replace(inflight.responses[0], tokens=16, earliest=4, changed=9)  # type: ignore[attr-defined]
    results = {
        "decode": replace(decode, prefill=replace(decode.prefill, largest=0.5)),  # type: ignore[type-var, attr-defined]
        "routing": replace(routing, layers=(5, 0), tokens=20),  # type: ignore[type-var]
        "inflight": replace(inflight, responses=(response,)),  # type: ignore[type-var]
    }
    gaps, shares, responses = draw_pictures(replace(trace, results=results))
    assert isinstance(gaps, HeatMap)
    assert isinstance(shares, Curves)
    assert isinstance(responses, TextTable)
    place = (gaps.rows.index("decode: one prefill"), gaps.columns.index("largest |Δ|"))
    # 2e-17 is left over on some processors
    assert {where for where, cell in gaps.cells.items() if (cell.value or 0) > 1e-12} == {place}
    assert gaps.cells[place].value == 0.5
    assert [series.values for series in shares.series] == [(0.25, 0.0)]
    assert responses.columns[1:4] == ("old weights", "old or new", "new weights")
    assert [cell.text for cell in responses.rows[0][1:4]] == ["4", "5", "7"]


def test_probes_without_gaps_draw_none(tmp_path: Path) -> None:
    assert draw_pictures(run_probe_case({"probes": ["ends"]}, tmp_path / "probes")) == ()


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


def test_a_critic_whose_gradient_differs() -> None:
    picture = draw_gradients(build_critic({"gradients": {WEIGHTS[1]: (0.05, 0.1, 0.1)}}), "Gradients")
    assert states_of(picture) == {WEIGHTS[0]: "equal", WEIGHTS[1]: "differs", WEIGHTS[2]: "equal"}


def test_the_values_of_a_critic_are_less_those_of_transformers() -> None:
    values, _ = draw_pictures(build_critic({"values_by": 0.25, "values": 4}))
    assert isinstance(values, Curves)
    assert values.series[0].values == (0.25, 0.25, 0.25, 0.25, None, None)
