"""From a trial to pictures: each tensor has the state that the trace shows, and clean trials say so in one sentence."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from ckptcheck.linter import rule_loader
from ckptcheck.linter.pictures import Curves, HeatCell, HeatMap, NoPicture, Picture
from ckptcheck.linter.runner import run_rules
from ckptcheck.live.pictures import draw_tensor_states
from ckptcheck.live.refit.trace import RefitTrace
from ckptcheck.live.refit.trace_queries import compare_scoring
from ckptcheck.reporters import render
from ckptcheck.reporters.evidence_pictures import draw_pictures
from tests.factories.pictures import HOSTILE
from tests.factories.refit_cases import run_trial_case

OUT = "model.layers.1.self_attn.o_proj.weight"
RULES = [rule for rule in rule_loader.load_rules() if rule.on == "refit"]


def draw(trace: RefitTrace) -> dict[str, Picture]:
    return {picture.title: picture for picture in draw_pictures(trace)}


def cells_of(picture: Picture | None) -> dict[str, dict[str, HeatCell]]:
    """Return name → label of the cell inside ("" for the cell itself) → cell."""
    assert isinstance(picture, HeatMap)
    cells: dict[str, dict[str, HeatCell]] = {}
    for cell in picture.cells.values():
        for label, inner in (cell.members or {"": cell}).items():
            cells.setdefault(inner.name, {})[label] = inner
    return cells


def states_of(table: dict[str, Any], folder: Path) -> dict[str, str]:
    cells = cells_of(draw_tensor_states(run_trial_case(table, folder), "Tensors"))
    return {name: cell.state for name, inner in cells.items() for cell in inner.values()}


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> RefitTrace:
    return run_trial_case({}, tmp_path_factory.mktemp("trial") / "healthy")


def test_every_tensor_of_a_healthy_trial_has_one_cell(healthy: RefitTrace) -> None:
    cells = cells_of(draw(healthy)["Tensors of the engine"])
    assert set(cells) == {name for _, name in healthy.syncs[-1].manifest}
    states = {name: inner[""].state for name, inner in cells.items()}
    assert states == {
        name: "written" if (0, name) in healthy.scrambled.names else "equal" for _, name in healthy.syncs[-1].manifest
    }
    assert set(states.values()) == {"written", "equal"}


@pytest.mark.parametrize(
    ("fault", "state"),
    [
        ({"kind": "cast", "name": OUT}, "wrong"),
        ({"kind": "dropped", "name": OUT}, "not written"),
        ({"kind": "renamed", "name": OUT, "other": "else"}, "lost"),
    ],
)
def test_a_fault_shows_in_the_cell_of_its_tensor_alone(fault: dict[str, Any], state: str, tmp_path: Path) -> None:
    states = states_of({"faults": [fault]}, tmp_path / "trial")
    assert states[OUT] == state
    assert {name for name, found in states.items() if found in ("wrong", "not written", "lost", "stale")} == {OUT}


def test_each_rank_has_a_cell_of_its_own(tmp_path: Path) -> None:
    trace = run_trial_case({"ranks": 2, "faults": [{"kind": "cast", "name": OUT}]}, tmp_path / "trial")
    sync = trace.syncs[-1]
    right = replace(sync.manifest[1, OUT], digest=sync.reference[1, OUT].digest)
    healed = [replace(each, manifest={**each.manifest, (1, OUT): right}, reference={**each.reference, (1, OUT): right},
                      unwritten_parts={}) for each in trace.syncs]  # fmt: skip
    cells = cells_of(draw_tensor_states(replace(trace, syncs=tuple(healed)), "Tensors"))[OUT]
    assert {rank: cell.state for rank, cell in cells.items()} == {"0": "wrong", "1": "written"}


def test_a_stale_tensor_says_after_which_sync_it_was(healthy: RefitTrace) -> None:
    first, *middle, last = healthy.syncs
    old = replace(last, manifest={**last.manifest, (0, OUT): first.manifest[0, OUT]})
    cell = cells_of(draw_tensor_states(replace(healthy, syncs=(first, *middle, old)), "Tensors"))[OUT][""]
    assert (cell.state, cell.note) == ("stale", "sync 1: written; sync 2: equal; sync 3: stale")


def test_what_cannot_be_read_is_not_called_equal(healthy: RefitTrace) -> None:
    syncs = []
    for sync in healthy.syncs:
        packed = replace(sync.manifest[0, OUT], digest="", opaque="packed for oneDNN")
        both = {"manifest": {**sync.manifest, (0, OUT): packed}, "reference": {**sync.reference, (0, OUT): packed}}
        syncs.append(replace(sync, **both))
    cell = cells_of(draw_tensor_states(replace(healthy, syncs=tuple(syncs)), "Tensors"))[OUT][""]
    assert (cell.state, cell.note) == ("not seen", "cannot be read: packed for oneDNN")


def test_a_buffer_that_differs_is_not_called_wrong(tmp_path: Path) -> None:
    trace = run_trial_case({}, tmp_path / "trial")
    sync = trace.syncs[-1]
    key, buffer = next((key, entry) for key, entry in sync.manifest.items() if entry.kind != "parameter")
    other = replace(sync, manifest={**sync.manifest, key: replace(buffer, digest="0" * 32)}, unwritten_parts={})
    cells = cells_of(draw_tensor_states(replace(trace, syncs=(*trace.syncs[:-1], other)), "Tensors"))
    assert cells[key[1]][""].state == "differs"


def test_a_trial_without_a_comparison_says_so() -> None:
    assert isinstance(draw_tensor_states(RefitTrace("trial"), "Tensors"), NoPicture)


def test_logprobs_before_and_after_are_those_of_the_trace(healthy: RefitTrace) -> None:
    pictures = draw(healthy)
    gap = pictures["Logprobs: how far the engine is from the trainer"]
    assert isinstance(gap, Curves)
    assert gap.x == ("cold load", *(f"sync {scoring.after_sync}" for scoring in healthy.scorings[1:]))
    lines = {series.name: series.values for series in gap.series}
    assert lines["largest"] == tuple(compare_scoring(scoring).trainer.most for scoring in healthy.scorings)
    assert set(lines["largest that is allowed"]) == {healthy.noise_floor.trainer_tolerance.most}
    tokens = pictures["Logprobs before and after, token by token"]
    assert isinstance(tokens, Curves)
    scoring = healthy.scorings[-1]
    assert tokens.series[-1].values[0] == scoring.engine[0].prompt_logprobs[0] - scoring.trainer[0][0]


def test_a_clean_trial_says_how_many_tensors_are_equal(healthy: RefitTrace, tmp_path: Path) -> None:
    report = run_rules(healthy, RULES)
    assert report.headline == "19 of 19 tensors equal bit for bit after 3 syncs, logprobs within the floor"
    broken = run_trial_case({"faults": [{"kind": "cast", "name": OUT}]}, tmp_path / "broken")
    assert run_rules(broken, RULES).headline == ""
    short = run_trial_case({"settings": {"steps": 0, "logprobs": False}}, tmp_path / "short")
    assert run_rules(short, RULES).headline == "19 of 19 tensors equal bit for bit after 1 sync"


def test_names_of_tensors_are_only_text(healthy: RefitTrace) -> None:
    sync = healthy.syncs[0]
    entry = replace(sync.manifest[0, OUT], name=HOSTILE)
    one = replace(sync, manifest={(0, HOSTILE): entry}, reference={(0, HOSTILE): entry})
    trace = replace(healthy, syncs=(one,), scorings=())
    page = render("html", [structs.replace(run_rules(trace, RULES), pictures=draw_pictures(trace))], RULES)
    assert "<img" not in page
    assert "\u202e" not in page
