"""From servers, adapters and faults to pictures: each tensor and each fault has the state that the evidence shows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ckptcheck.linter.pictures import Curves, HeatCell, HeatMap, NoPicture, Picture
from ckptcheck.live.pictures.adapter_effects import draw_slots
from ckptcheck.live.pictures.fault_answers import draw_answers
from ckptcheck.live.pictures.server_tensors import draw_server_tensors
from ckptcheck.reporters.evidence_pictures import draw_pictures
from tests.factories.attached_servers import NAMES, build_servers
from tests.factories.conformance_cases import build_conformance
from tests.factories.lora_cases import run_lora_case

QKV = NAMES[1]


def states_of(picture: Picture | None) -> dict[str, dict[str, str]]:
    """Return name → label of the cell inside ("" for the cell itself) → state."""
    assert isinstance(picture, HeatMap)
    found: dict[str, dict[str, str]] = {}
    for cell in picture.cells.values():
        for label, inner in (cell.members or {"": cell}).items():
            found.setdefault(inner.name, {})[label] = inner.state
    return found


@pytest.mark.parametrize(
    ("servers", "more", "expected"),
    [
        ([{}], {}, ["compared with nothing"]),
        ([{}, {}], {}, ["as the other servers"] * 2),
        ([{}, {"differs": [QKV]}], {}, ["other than on another server"] * 2),
        ([{}, {"differs": [QKV]}], {"reference": {}}, ["as the reference", "other than the reference"]),
        ([{"blank": [QKV]}], {"reference": {}}, ["not readable"]),
        ([{"lacks": [QKV]}], {"reference": {}}, ["lacking"]),
        ([{"copy": [QKV], "layout": {"copies": 2}}], {"reference": {}}, ["the copies disagree"]),
        # a reference of another version says nothing of this server
        ([{"differs": [QKV]}], {"reference": {"info": {"version": "0.5.1"}}}, ["compared with nothing"]),
    ],
)
def test_a_tensor_of_a_server(servers: list[Any], more: dict[str, Any], expected: list[str]) -> None:
    states = states_of(draw_server_tensors(build_servers({"servers": servers} | more), "Tensors"))
    assert list(states[QKV].values()) == expected
    sound = {"compared with nothing", "as the other servers", "as the reference"}
    assert {state for name, inner in states.items() if name != QKV for state in inner.values()} <= sound


def test_servers_without_checksums_say_why() -> None:
    evidence = build_servers({"servers": [{"checksums": False, "refused": {"checksums": "404"}}]})
    assert draw_server_tensors(evidence, "Tensors") == NoPicture("Tensors", "404")


def test_logprobs_of_servers_are_less_the_trainer_s() -> None:
    evidence = build_servers({"servers": [{}, {"off": 0.5}], "trainer": {}})
    curves = draw_pictures(evidence)[1]
    assert isinstance(curves, Curves)
    assert [set(series.values) for series in curves.series] == [{0.0}, {0.5}]


@pytest.mark.parametrize(
    ("table", "worst"),
    [
        ({}, {"right"}),
        ({"faults": ["stale"], "update": "same"}, {"stale"}),
    ],
)
def test_the_slot_of_an_adapter(table: dict[str, Any], worst: set[str], tmp_path: Path) -> None:
    trace = run_lora_case(table, tmp_path / "lora")
    states = states_of(draw_slots(trace, "Slot"))
    assert {state for inner in states.values() for state in inner.values()} >= worst
    effects = draw_pictures(trace)[1]
    assert isinstance(effects, Curves)
    lines = {series.name: series.values for series in effects.series}
    assert lines["without it, at the end"] == (0.0,) * len(effects.x)
    assert (lines["another one under its name"] == lines["that one, loaded cold"]) is (worst == {"right"})
    assert trace.loaded is not None
    with_it, without = (scores[0].prompt_logprobs[0] for scores in (trace.loaded.scores, trace.base))
    assert lines["with the adapter"][0] == with_it - without != 0


@pytest.mark.parametrize(("when", "state"), [("updated", "wrong"), ("evicted", "lost in the eviction")])
def test_a_slot_with_numbers_of_neither_adapter(when: str, state: str, tmp_path: Path) -> None:
    trace = run_lora_case({}, tmp_path / "lora")
    served = getattr(trace, when)
    key = next(iter(served.slots))
    slots = {**served.slots, key: replace(served.slots[key], digest="0" * 32)}
    states = states_of(draw_slots(replace(trace, **{when: replace(served, slots=slots)}), "Slot"))
    assert {name: inner[""] for name, inner in states.items() if inner[""] != "right"} == {key[1]: state}


def test_faults_stand_below_their_answers() -> None:
    outcomes = [
        {"kind": "drop", "place": "first bucket", "answer": "silent", "detail": "half is old"},
        {"kind": "drop", "place": "last bucket", "answer": "silent"},
        {"kind": "truncate", "answer": "refused", "is_stuck": True, "is_wrong_afterwards": True},
    ]
    picture = draw_answers(build_conformance({"outcomes": outcomes}), "Faults")
    assert isinstance(picture, HeatMap)
    assert picture.columns == ("refused", "SILENT")
    note = "half is old; brought back by a sound update"
    assert picture.cells[0, 1].members["first bucket"] == HeatCell(state="SILENT", note=note, name="drop")
    assert set(picture.cells[0, 1].members) == {"first bucket", "last bucket"}
    assert picture.cells[1, 0].state == "refused"
    assert picture.cells[1, 0].note.endswith(
        "a sound update did not bring it back; the update after it reported success and left wrong weights"
    )
    assert isinstance(draw_answers(build_conformance({}), "Faults"), NoPicture)
