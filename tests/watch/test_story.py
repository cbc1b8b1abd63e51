"""What a watch says of itself: a line when it begins, one at the end, and one when it cannot look for long."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from ckptcheck.watch import SyncWarning, Watch
from tests.watch.toy import NAMES, Engine, Trainer

BOARD = Path(__file__).parents[2] / "docs" / "grafana.json"


def run_syncs(watch: Watch, engine: Engine, steps: range) -> None:
    trainer = Trainer()
    for step in steps:
        with watch(step=step) as sync:
            engine.update(sync.sent(trainer.export()))
        trainer.step()


def test_a_line_at_the_start_and_one_at_the_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    engine = Engine()
    watch = Watch(engine, record=tmp_path / "syncs.jsonl", trainer="trl", share=0.02, on=lambda finding: None)
    run_syncs(watch, engine, range(2))
    (begin,) = capsys.readouterr().err.splitlines()
    assert begin == (
        "ckptcheck.watch: watches what trl sends (6 tensors, 0.000384 MB) and what toy holds (6 tensors); looks at every sync,"
        f" for at most 0.02 of the CPU time of a step; record: {tmp_path / 'syncs.jsonl'}"
    )
    engine.deaf = (NAMES[0],)
    run_syncs(watch, engine, range(2, 5))
    watch.close()
    watch.close()
    (end,) = capsys.readouterr().err.splitlines()
    assert re.fullmatch(
        r"ckptcheck\.watch: 5 syncs, 6 of 6 tensors looked at within the last 5; \d errors? \(HIS\d+.*\); it held the job up for"
        r" [\d.]+% of the time; ckptcheck refit history .*syncs\.jsonl",
        end,
    )


def test_a_watch_that_sees_no_sync_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    Watch().close()
    Watch(enabled=False).close()
    assert capsys.readouterr().err == (
        "ckptcheck.watch: saw no sync: either none took place, or the job syncs by a call that is not watched\n"
    )


def test_a_watch_that_cannot_look_says_so_every_ten_syncs() -> None:
    rows: list[Mapping[str, float]] = []
    watch = Watch(metrics=lambda values, step: rows.append(values))
    blind = r"ckptcheck\.watch: it has seen no weights for (\d+) syncs, since step 3: the sync ended before"
    with pytest.warns(SyncWarning) as warned:  # noqa: PT031
        for step in range(25):
            with watch(step=step) as sync:
                weights = sync.sent(Trainer().export())
                if step < 3:
                    list(weights)
    assert [match[1] for each in warned if (match := re.search(blind, str(each.message)))] == ["10", "20"]
    assert [row["ckptcheck/blind"] for row in rows] == [0, 0, 0, *range(1, 23)]
    assert rows[-1]["ckptcheck/coverage"] == 0


def test_the_board_shows_numbers_that_there_are() -> None:
    rows: list[Mapping[str, float]] = []
    engine = Engine()
    watch = Watch(engine, metrics=lambda values, step: rows.append(values))
    run_syncs(watch, engine, range(3))
    sent = {name.replace("/", "_") for row in rows for name in row} | {"ckptcheck_step", "ckptcheck_findings_total"}
    sent |= {"ckptcheck_gap", "ckptcheck_loss", "ckptcheck_probe_mean"}  # where the job has them
    asked = set(
        re.findall(r"ckptcheck_\w+", " ".join(re.findall(r'"expr": "[^"]+', BOARD.read_text(encoding="utf-8"))))
    )
    assert asked <= sent
    assert len(json.loads(BOARD.read_text(encoding="utf-8"))["panels"]) == 9
