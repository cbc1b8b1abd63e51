"""From a record to pictures: the raster shows what changed at which sync, the curves what the syncs took."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from ckptcheck.linter import rule_loader
from ckptcheck.linter.pictures import Curves, HeatMap, Picture
from ckptcheck.linter.runner import run_rules
from ckptcheck.reporters import render
from ckptcheck.reporters.evidence_pictures import draw_pictures
from ckptcheck.reporters.pictures.history_raster import draw_raster
from ckptcheck.runs.history.history import History
from ckptcheck.runs.history.record import SyncRecord
from tests.factories.history_cases import NAMES, build_history
from tests.factories.pictures import HOSTILE

RULES = [rule for rule in rule_loader.load_rules() if rule.on == "history"]


def draw(history: History) -> dict[str, Picture]:
    return {picture.title: picture for picture in draw_pictures(history)}


def rows_of(picture: Picture | None) -> dict[str, list[str]]:
    """Return row → the state of each column, "" where there is no cell."""
    assert isinstance(picture, HeatMap)
    return {
        row: [
            picture.cells[at, column].state if (at, column) in picture.cells else ""
            for column in range(len(picture.columns))
        ]
        for at, row in enumerate(picture.rows)
    }


def make_history(syncs: list[dict[str, Any]], tmp_path: Path) -> History:
    return build_history({"syncs": syncs}, tmp_path / "syncs.jsonl")


def test_a_raster_shows_what_changed_at_which_sync(tmp_path: Path) -> None:
    history = make_history(
        [
            {},
            {"same": ["*layernorm*"]},
            {"stale": ["model.layers.1.self_attn.o_proj.weight"]},
            {"unseen": ["*mlp.gate*"]},
        ],
        tmp_path,
    )
    pictures = draw(history)
    sent, held = rows_of(pictures["What the trainer sent"]), rows_of(pictures["What the engine held"])
    assert list(sent) == sorted(NAMES)
    assert sent["model.embed_tokens.weight"] == ["not compared", "changed", "changed", "changed"]
    assert sent["model.layers.0.input_layernorm.weight"] == ["not compared", "unchanged", "changed", "changed"]
    assert held["0/model.layers.1.self_attn.o_proj.weight"] == ["not compared", "changed", "stale", "changed"]
    assert held["0/model.layers.0.mlp.gate.weight"] == ["not compared", "changed", "changed", "not seen"]
    picture = pictures["What the trainer sent"]
    assert isinstance(picture, HeatMap)
    assert picture.columns == ("step 0", "step 1", "step 2", "step 3")


def test_a_failed_sync_and_another_process_are_not_compared(tmp_path: Path) -> None:
    history = make_history([{}, {"ok": False}, {"run": "two"}, {"run": "two"}], tmp_path)
    states = rows_of(draw(history)["What the trainer sent"])["model.embed_tokens.weight"]
    assert states == ["not compared", "not compared", "not compared", "changed"]


def test_a_finding_leads_to_the_tensor_that_is_stale(tmp_path: Path) -> None:
    history = make_history([{}, {"stale": ["model.layers.1.self_attn.o_proj.weight"]}, {}], tmp_path)
    (finding,) = (finding for finding in run_rules(history, RULES).findings if finding.code == "HIS001")
    pictures = draw(history)
    for title in ("What the trainer sent", "What the engine held"):
        picture = pictures[title]
        assert isinstance(picture, HeatMap)
        assert [at for (_, at), cell in picture.cells.items() if cell.name == finding.key] == [1], title
        others = {cell.name: at for (_, at), cell in picture.cells.items() if cell.name not in {"", finding.key}}
        assert set(others.values()) == {2}, title


def test_many_tensors_share_rows_and_a_click_opens_them() -> None:
    names = [f"layers.{number}.{kind}" for number in range(100) for kind in ("up", "down")]
    before = SyncRecord(run="one", step=0, sent=dict.fromkeys(names, "a" * 32))
    after = SyncRecord(run="one", step=1, sent=dict.fromkeys(names, "b" * 32) | {"layers.3.up": "a" * 32})
    picture = draw_raster(History("record", (before, after)), "sent", "Sent")
    assert picture is not None
    assert picture.rows == ("layers.*.down", "layers.*.up")
    cell = picture.cells[1, 1]
    assert cell.note == "99 changed, 1 unchanged"
    assert [label for label, inner in cell.members.items() if inner.state == "unchanged"] == ["3"]
    assert cell.members["3"].name == "layers.3.up"


def test_very_many_cells_say_how_many_and_not_which() -> None:
    sent = {f"layers.{number}.up": "a" * 32 for number in range(1000)}
    syncs = tuple(
        SyncRecord(run="one", step=step, sent=dict.fromkeys(sent, f"{step:032}") | {"layers.3.up": "a" * 32})
        for step in range(41)
    )
    picture = draw_raster(History("record", syncs), "sent", "Sent")
    assert picture is not None
    last = picture.cells[0, 40]
    assert (last.members, last.state, last.note) == ({}, "changed", "999 changed, 1 unchanged")
    assert len(render("html", [run_rules(History("record", syncs), [])], [])) < 500_000


def test_curves_have_the_numbers_of_the_record(tmp_path: Path) -> None:
    history = make_history([{"step": step, "probe": 0.01} for step in range(3)], tmp_path)
    curves = {title: picture for title, picture in draw(history).items() if isinstance(picture, Curves)}
    assert [series.values[0] for series in curves["Parity after each sync"].series] == [0.01, 0.03]


def test_a_record_without_numbers_has_no_curves(tmp_path: Path) -> None:
    assert set(draw(make_history([{}, {"version": "v7"}], tmp_path))) == {
        "What the trainer sent",
        "What the engine held",
    }


def test_names_of_tensors_are_only_text(tmp_path: Path) -> None:
    history = make_history([{}, {}], tmp_path)
    syncs = tuple(SyncRecord(run="one", step=sync.step, sent={HOSTILE: f"{sync.step:032}"}) for sync in history.syncs)
    page = render("html", [run_rules(replace(history, syncs=syncs), RULES)], RULES)
    assert "<img" not in page
    assert "\u202e" not in page
