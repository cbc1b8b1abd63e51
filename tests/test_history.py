"""The record of syncs as a file: bounded, appended to by several, cut off anywhere; and the command that reads it."""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from recorded import history
from refitted import played

from ckptcheck import pack
from ckptcheck.dialects.made import parts
from ckptcheck.errors import CkptcheckError
from ckptcheck.history import record as records
from ckptcheck.history.history import open_history
from ckptcheck.history.record import Record, Sync, read
from ckptcheck.refit.recorded import recorded
from ckptcheck.run import run

RULES = pack.load()


def command(*arguments: object) -> subprocess.CompletedProcess[str]:
    call = [sys.executable, "-m", "ckptcheck", "refit", *map(str, arguments)]
    return subprocess.run(call, capture_output=True, text=True, check=False)


def written(path: Path, number: int, keep: int = 1000) -> Record:
    record = Record(path, keep=keep)
    for step in range(number):
        record.append(Sync(step=step, sent={"w": f"{step}"}))
    return record


def test_the_last_syncs_are_kept_and_the_file_is_bounded(tmp_path: Path) -> None:
    path = tmp_path / "syncs.jsonl"
    lines = 0
    record = Record(path, keep=5)
    for step in range(33):
        record.append(Sync(step=step, sent={"w": f"{step}"}))
        syncs, damaged = read(path)
        assert damaged == {}
        assert [sync.step for sync in syncs][-5:] == list(range(max(0, step - 4), step + 1))
        lines = max(lines, len(syncs))
    assert lines == 9, "twice what is kept is never reached"


def test_a_second_process_goes_on_with_the_file(tmp_path: Path) -> None:
    written(tmp_path / "syncs.jsonl", 7, keep=5)
    written(tmp_path / "syncs.jsonl", 4, keep=5)
    syncs, _ = read(tmp_path / "syncs.jsonl")
    assert [sync.step for sync in syncs] == [2 + 4, 0, 1, 2, 3][-len(syncs) :] or len(syncs) < 10
    assert [sync.step for sync in syncs][-4:] == [0, 1, 2, 3]


def test_wherever_it_is_cut_off_only_the_last_sync_is_lost(tmp_path: Path) -> None:
    path = tmp_path / "syncs.jsonl"
    written(path, 3)
    raw = path.read_bytes()
    starts = [0, *(place + 1 for place, byte in enumerate(raw) if byte == 10)]
    for cut in range(starts[1], len(raw)):
        path.write_bytes(raw[:cut])
        syncs, damaged = read(path)
        whole = sum(end <= cut for end in starts[1:])
        assert damaged == {}, cut
        assert len(syncs) in (whole, whole + 1), cut  # a line that lacks nothing but its end is whole
        Record(path).append(Sync(step=99))
        again, _ = read(path)
        assert again[-1].step == 99, "what is appended after the cut is a line of its own"
        path.write_bytes(raw)


def test_writers_do_not_get_into_each_others_lines(tmp_path: Path) -> None:
    path = tmp_path / "syncs.jsonl"
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda number: Record(path).append(Sync(step=number, sent={"w": "0" * 5000})), range(40)))
    syncs, damaged = read(path)
    assert damaged == {}
    assert sorted(sync.step or 0 for sync in syncs) == list(range(40))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "holds no sync"),
        (b"\n\n", "holds no sync"),
        (b"hello\n", "is not a record of syncs"),
        (b'\xff\x00\n{"run": "a"}\n' + b"[" * 5000 + b"\n", None),
        (b'{"schema": "ckptcheck-manifest/1"}\n', "is not a record of syncs"),
        (b'{"schema": "ckptcheck-sync/1", "sent": {"w": 7}}\n', "is not a record of syncs"),
        (b'{"hello": "world"}\n', "is not a record of syncs"),
    ],
)
def test_what_is_no_record(tmp_path: Path, content: bytes, words: str | None) -> None:
    path = tmp_path / "syncs.jsonl"
    path.write_bytes(content)
    if words is None:
        assert set(read(path)[1]) == {1, 3}
        return
    with pytest.raises(CkptcheckError, match=words):
        read(path)


def test_a_line_that_is_too_long_costs_itself_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "LONGEST", 500)
    path = tmp_path / "syncs.jsonl"
    written(path, 2)
    with path.open("ab") as file:
        file.write(b'{"message": "' + b"x" * 1700 + b'"}\n')
    Record(path).append(Sync(step=9))
    syncs, damaged = read(path)
    assert [sync.step for sync in syncs] == [0, 1, 9]
    assert set(damaged) == {3}


def test_a_record_that_cannot_be_written_or_keeps_nothing(tmp_path: Path) -> None:
    with pytest.raises(CkptcheckError, match="cannot write the record"):
        Record(tmp_path / "nowhere" / "syncs.jsonl").append(Sync())
    with pytest.raises(CkptcheckError, match="at least 2"):
        Record(tmp_path / "syncs.jsonl", keep=1)


def test_what_an_engines_tensor_is_made_of() -> None:
    sent = [f"model.layers.0.{name}.weight" for name in ("self_attn.q_proj", "mlp.gate_proj", "mlp.up_proj")]
    sent += [
        f"model.layers.0.mlp.experts.{expert}.{name}_proj.weight"
        for expert in (0, 1)
        for name in ("gate", "up", "down")
    ]
    assert parts("model.layers.0.mlp.gate_up_proj.weight", sent) == tuple(sent[1:3])
    assert parts("model.layers.0.self_attn.qkv_proj.weight", sent) == (sent[0],), "what is sent of it"
    assert len(parts("model.layers.0.mlp.experts.routed_experts.w13_weight", sent)) == 4
    assert len(parts("model.layers.0.mlp.experts.w2_weight", sent)) == 2
    assert parts("model.layers.1.mlp.experts.w2_weight", sent) == ()
    assert parts("model.layers.0.self_attn.attn.scale", sent) == ()


def test_a_sound_trial_is_recorded_and_has_no_finding(tmp_path: Path) -> None:
    record = Record(tmp_path / "syncs.jsonl")
    for sync in recorded(played({"settings": {"steps": 3}, "ranks": 2}, tmp_path / "trial")):
        record.append(sync)
    found = open_history(tmp_path / "syncs.jsonl")
    assert [sync.step for sync in found.syncs] == [0, 1, 1, 2, 2, 3, 3]
    assert all(turn.moved and turn.turned for turn in found.steps)
    report = run(found, RULES)
    assert (report.verdict, report.findings) == ("clean", ())
    assert {"HIS001", "HIS002", "HIS003", "HIS004", "HIS006", "HIS007", "HIS008"} <= set(report.passed)


def test_a_stale_tensor_of_a_trial_is_seen_in_its_record(tmp_path: Path) -> None:
    name = "model.layers.1.self_attn.o_proj.weight"
    trace = played({"faults": [{"kind": "stale", "name": name}]}, tmp_path / "trial")
    record = Record(tmp_path / "syncs.jsonl")
    for sync in recorded(trace):
        record.append(sync)
    report = run(open_history(tmp_path / "syncs.jsonl"), RULES)
    assert ("HIS001", name) in {(finding.code, finding.key) for finding in report.findings}


def test_the_command(tmp_path: Path) -> None:
    path = tmp_path / "syncs.jsonl"
    history(
        {"syncs": [{"version": "1", "loss": 2.5, "step": 0}, {"version": "1", "loss": 2.25, "step": 1, "same": ["*"]}]},
        path,
    )
    text = command("history", path)
    assert text.returncode == 1
    assert "never changed: 28 of 28 that were sent: " in text.stdout
    assert "error   HIS005 version-not-moved" in text.stdout
    assert "warning HIS002 nothing-changed" in text.stdout
    assert text.stderr == ""
    told = json.loads(command("history", path, "--format", "json", "--fail-on", "never").stdout)
    assert [finding["code"] for finding in told["findings"]] == ["HIS005", "HIS002"]
    assert told["sections"][0]["rows"][1][1:8] == [1, "1", 2.25, 28, 0, 22, 0]
    for form in ("sarif", "junit", "github"):
        done = command("history", path, "--format", form)
        assert (done.returncode, "HIS005" in done.stdout) == (1, True), form
    missing = command("history", tmp_path / "nowhere")
    assert (missing.returncode, "Traceback" in missing.stderr) == (2, False)
    assert "cannot read the record" in missing.stderr


def test_a_checkpoint_called_history_is_still_a_checkpoint(tmp_path: Path) -> None:
    done = command("./history")
    assert (done.returncode, "./history" in done.stderr) == (2, True)
    assert "cannot read the record" not in done.stderr
