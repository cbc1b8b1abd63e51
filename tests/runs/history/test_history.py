"""The record of syncs as a file: bounded, appended to by several, cut off anywhere; and the command that reads it."""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ckptcheck.consumers.engine_tensors import find_source_tensors
from ckptcheck.errors import CkptcheckError
from ckptcheck.linter import rule_loader
from ckptcheck.linter.report import Section
from ckptcheck.linter.runner import run_rules
from ckptcheck.live.refit.recording import append_to_record, to_record
from ckptcheck.runs.history import record as records
from ckptcheck.runs.history.history import open_history
from ckptcheck.runs.history.record import ProbeRecord, Record, SyncRecord, read_record
from ckptcheck.text.formatting import join_truncated
from tests.factories.checkpoint_cases import CHECKPOINTS, MEGATRON
from tests.factories.history_cases import ENGINE, NAMES, build_history
from tests.factories.refit_cases import run_trial_case

RULES = rule_loader.load_rules()


def command(*arguments: object) -> subprocess.CompletedProcess[str]:
    call = [sys.executable, "-m", "ckptcheck", "refit", *map(str, arguments)]
    return subprocess.run(call, capture_output=True, text=True, check=False)


def written(path: Path, number: int, keep: int = 1000) -> Record:
    record = Record(path, keep=keep)
    for step in range(number):
        record.append(SyncRecord(step=step, sent={"w": f"{step}"}))
    return record


def test_the_last_syncs_are_kept_and_the_file_is_bounded(tmp_path: Path) -> None:
    path = tmp_path / "syncs.jsonl"
    lines = 0
    record = Record(path, keep=5)
    for step in range(33):
        record.append(SyncRecord(step=step, sent={"w": f"{step}"}))
        syncs, damaged = read_record(path)
        assert damaged == {}
        assert [sync.step for sync in syncs][-5:] == list(range(max(0, step - 4), step + 1))
        lines = max(lines, len(syncs))
    assert lines == 9, "twice what is kept is never reached"


def test_a_second_process_goes_on_with_the_file(tmp_path: Path) -> None:
    written(tmp_path / "syncs.jsonl", 7, keep=5)
    written(tmp_path / "syncs.jsonl", 4, keep=5)
    syncs, _ = read_record(tmp_path / "syncs.jsonl")
    assert [sync.step for sync in syncs] == [2 + 4, 0, 1, 2, 3][-len(syncs) :] or len(syncs) < 10
    assert [sync.step for sync in syncs][-4:] == [0, 1, 2, 3]


def test_wherever_it_is_cut_off_only_the_last_sync_is_lost(tmp_path: Path) -> None:
    path = tmp_path / "syncs.jsonl"
    written(path, 3)
    raw = path.read_bytes()
    starts = [0, *(place + 1 for place, byte in enumerate(raw) if byte == 10)]
    for cut in range(starts[1], len(raw)):
        path.write_bytes(raw[:cut])
        syncs, damaged = read_record(path)
        whole = sum(end <= cut for end in starts[1:])
        assert damaged == {}, cut
        assert len(syncs) in (whole, whole + 1), cut  # a line that lacks nothing but its end is whole
        Record(path).append(SyncRecord(step=99))
        again, _ = read_record(path)
        assert again[-1].step == 99, "what is appended after the cut is a line of its own"
        path.write_bytes(raw)


def test_writers_do_not_get_into_each_others_lines(tmp_path: Path) -> None:
    path = tmp_path / "syncs.jsonl"
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda number: Record(path).append(SyncRecord(step=number, sent={"w": "0" * 5000})), range(40)))
    syncs, damaged = read_record(path)
    assert damaged == {}
    assert sorted(sync.step or 0 for sync in syncs) == list(range(40))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "holds no sync"),
        (b"\n\n", "holds no sync"),
        (b"hello\n", "is not a record of syncs"),
        (b'\xff\x00\n{"run": "a"}\n' + b"[" * 5000 + b"\n", None),
        (b'{"schema": "ckptcheck-manifest/2"}\n', "is not a record of syncs"),
        (b'{"schema": "ckptcheck-sync/1", "sent": {"w": 7}}\n', "is not a record of syncs"),
        (b'{"hello": "world"}\n', "is not a record of syncs"),
    ],
)
def test_what_is_no_record(tmp_path: Path, content: bytes, words: str | None) -> None:
    path = tmp_path / "syncs.jsonl"
    path.write_bytes(content)
    if words is None:
        assert set(read_record(path)[1]) == {1, 3}
        return
    with pytest.raises(CkptcheckError, match=words):
        read_record(path)


def test_a_number_that_is_none_does_not_break_the_record(tmp_path: Path) -> None:
    """JSON has no NaN: the writer's null stands for one, in records that older versions wrote too."""
    path = tmp_path / "syncs.jsonl"
    Record(path).append(SyncRecord(step=0, loss=float("nan"), probe=ProbeRecord(1e-7, 2e-7, 9)))
    line = b'{"schema":"ckptcheck-sync/1","run":"a","step":1,"loss":1.5,"probe":{"mean":null,"most":null,"tokens":9}}\n'
    path.write_bytes(path.read_bytes() + line)
    syncs, damaged = read_record(path)
    assert damaged == {}
    assert [(sync.loss, sync.not_finite) for sync in syncs] == [(None, True), (1.5, False)]
    told = command("history", path)
    assert (told.returncode, told.stdout.count("error   HIS022")) == (1, 2)


def test_a_line_that_is_too_long_costs_itself_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "LONGEST", 500)
    path = tmp_path / "syncs.jsonl"
    written(path, 2)
    with path.open("ab") as file:
        file.write(b'{"message": "' + b"x" * 1700 + b'"}\n')
    Record(path).append(SyncRecord(step=9))
    syncs, damaged = read_record(path)
    assert [sync.step for sync in syncs] == [0, 1, 9]
    assert set(damaged) == {3}


@pytest.mark.parametrize(
    "content",
    [
        b"step 1\n" * 300,
        b"{\n" + b'  "step": 1\n' * 300 + b"}\n",
        b'{"step": 1}\n' * 300,
        b'{"schema":"ckptcheck-sync/2"}\n' * 300,
        b"\x7fELF" + bytes(range(256)) * 9,
    ],
    ids=["text", "json", "jsonl", "newer", "binary"],
)
def test_a_file_that_is_no_record_is_refused_and_left_as_it_is(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "train.log"
    path.write_bytes(content)
    for refused in (Record(path).check_writable, lambda: Record(path).append(SyncRecord(step=1))):
        with pytest.raises(CkptcheckError, match="log is not a record of syncs, and is left as it is"):
            refused()
    assert path.read_bytes() == content


def test_lines_that_are_no_syncs_stay_where_a_record_is_bounded(tmp_path: Path) -> None:
    path = tmp_path / "syncs.jsonl"
    written(path, 2, keep=3)
    with path.open("ab") as file:
        file.write(b"a note\n\n" + b'{"schema":"ckptcheck-sync/1","run":"cut o\n')
    written(path, 3, keep=3)
    lines = path.read_bytes().splitlines()
    assert b"a note" in lines
    assert [b"cut o" in line for line in lines].count(True) == 0, "a sync that was cut off goes with the others"
    syncs, damaged = read_record(path)
    assert [sync.step for sync in syncs] == [0, 1, 2]
    assert set(damaged) == {1}


def test_a_record_whose_very_first_sync_was_cut_off_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "syncs.jsonl"
    written(path, 1)
    raw = path.read_bytes()
    for cut in (0, 1, 9, len(records.BEGIN), len(raw) - 9):
        path.write_bytes(raw[:cut])
        for step in (7, 8):
            Record(path).append(SyncRecord(step=step))
        assert [sync.step for sync in read_record(path)[0]] == [7, 8], cut


def test_what_could_not_be_written_is_known_before(tmp_path: Path) -> None:
    Record(tmp_path / "syncs.jsonl").check_writable()
    assert not (tmp_path / "syncs.jsonl").exists()
    written(tmp_path / "syncs.jsonl", 1)
    before = (tmp_path / "syncs.jsonl").read_bytes()
    Record(tmp_path / "syncs.jsonl").check_writable()
    assert (tmp_path / "syncs.jsonl").read_bytes() == before
    for place in (tmp_path / "nowhere" / "syncs.jsonl", tmp_path):
        with pytest.raises(CkptcheckError, match="cannot write the record"):
            Record(place).check_writable()


def test_a_record_that_cannot_be_written_or_keeps_nothing(tmp_path: Path) -> None:
    with pytest.raises(CkptcheckError, match="cannot write the record"):
        Record(tmp_path / "nowhere" / "syncs.jsonl").append(SyncRecord())
    with pytest.raises(CkptcheckError, match="at least 2"):
        Record(tmp_path / "syncs.jsonl", keep=1)


def test_what_an_engines_tensor_is_made_of() -> None:
    sent = [f"model.layers.0.{name}.weight" for name in ("self_attn.q_proj", "mlp.gate_proj", "mlp.up_proj")]
    sent += [
        f"model.layers.0.mlp.experts.{expert}.{name}_proj.weight"
        for expert in (0, 1)
        for name in ("gate", "up", "down")
    ]
    assert find_source_tensors("model.layers.0.mlp.gate_up_proj.weight", sent) == tuple(sent[1:3])
    assert find_source_tensors("model.layers.0.self_attn.qkv_proj.weight", sent) == (sent[0],), "what is sent of it"
    assert len(find_source_tensors("model.layers.0.mlp.experts.routed_experts.w13_weight", sent)) == 4
    assert len(find_source_tensors("model.layers.0.mlp.experts.w2_weight", sent)) == 2
    assert find_source_tensors("model.layers.1.mlp.experts.w2_weight", sent) == ()
    # transformers 5 has the experts of a layer in one parameter, as vLLM does
    whole = [f"model.layers.0.mlp.experts.{name}" for name in ("gate_up_proj", "down_proj", "gate_up_proj_bias")]
    for engine, source in zip(("w13_weight", "w2_weight", "w13_bias"), whole, strict=True):
        assert find_source_tensors(f"model.layers.0.mlp.experts.routed_experts.{engine}", whole) == (source,)
    assert find_source_tensors("language_model.model.layers.0.mlp.gate_up_proj.weight", sent) == tuple(sent[1:3])
    assert find_source_tensors("model.layers.0.self_attn.attn.scale", sent) == ()


def test_a_sound_trial_is_recorded_and_has_no_finding(tmp_path: Path) -> None:
    trace = run_trial_case({"settings": {"steps": 3}, "ranks": 2}, tmp_path / "trial")
    append_to_record(trace, tmp_path / "syncs.jsonl")
    (tmp_path / "notes.txt").write_text("mine\n", encoding="utf-8")
    with pytest.raises(CkptcheckError, match="is not a record of syncs"):
        append_to_record(trace, tmp_path / "notes.txt")
    assert (tmp_path / "notes.txt").read_text(encoding="utf-8") == "mine\n"
    found = open_history(tmp_path / "syncs.jsonl")
    assert [sync.step for sync in found.syncs] == [0, 1, 1, 2, 2, 3, 3]
    assert [sync.time for sync in found.syncs] == [sync.time for sync in trace.syncs]
    assert all(sync.time for sync in trace.syncs), "when it ended, not when it was recorded"
    assert all(turn.sent_changed and turn.held_changed for turn in found.step_pairs)
    report = run_rules(found, RULES)
    assert (report.verdict, report.findings) == ("clean", ())
    assert {"HIS001", "HIS002", "HIS004", "HIS006", "HIS007", "HIS008"} <= set(report.passed)


def test_a_stale_tensor_of_a_trial_is_seen_in_its_record(tmp_path: Path) -> None:
    name = "model.layers.1.self_attn.o_proj.weight"
    trace = run_trial_case({"faults": [{"kind": "stale", "name": name}]}, tmp_path / "trial")
    record = Record(tmp_path / "syncs.jsonl")
    for sync in to_record(trace):
        record.append(sync)
    report = run_rules(open_history(tmp_path / "syncs.jsonl"), RULES)
    assert ("HIS001", name) in {(finding.code, finding.key) for finding in report.findings}


def test_the_command(tmp_path: Path) -> None:
    path = tmp_path / "syncs.jsonl"
    build_history(
        {"syncs": [{"version": "1", "loss": 2.5, "step": 0}, {"version": "1", "loss": 2.25, "step": 1, "same": ["*"]}]},
        path,
    )
    text = command("history", path)
    assert text.returncode == 1
    assert "never changed: 28 of 28 that were sent: " in text.stdout
    assert "error   HIS005 version-not-moved" in text.stdout
    assert "warning HIS002 unchanged-payload" in text.stdout
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


def test_a_sync_is_compared_with_the_last_one_that_tells_most_of_it(tmp_path: Path) -> None:
    """Of the same names: a draft has syncs of its own. Else of more or fewer: an adapter alone, after it came with its base."""
    policy, draft, other = {"a": "1", "b": "1"}, {"fc": "1"}, {"x": "1", "y": "1"}
    record = Record(tmp_path / "syncs.jsonl")
    for sent in (policy, draft, policy, draft, {"b": "2"}, other, {"b": "3"}, {"a": "4", "b": "4", "c": "4"}):
        record.append(SyncRecord(sent=sent))
    pairs = {pair.index: pair.before_index for pair in open_history(record.path).pairs}
    assert pairs == {1: 0, 2: 0, 3: 1, 4: 2, 5: 4, 6: 4, 7: 6}


def test_which_tensors_changed_at_each_sync_is_told(tmp_path: Path) -> None:
    path = tmp_path / "syncs.jsonl"
    syncs = [
        {},
        {},
        {},
        {"same": ["*self_attn*"], "stale": ["*"]},
        {"same": ["model.layers.*"], "held": False},
        {"ok": False},
        {"same": ["*"]},
    ]
    found = build_history({"syncs": syncs}, path)
    _, changed = found.sections
    assert changed.columns == ("sync", "side", "tensor")
    assert {row for row in changed.rows if row[0] == 2} == {
        *((2, "sent", name) for name in NAMES),
        *((2, "engine", f"0/{name}") for name in ENGINE if not name.endswith("attn.scale")),
    }
    scales = join_truncated([f"0/{name}" for name in ENGINE if "scale" in name])
    attention = join_truncated([name for name in NAMES if "self_attn" in name])
    assert changed.brief == (
        f"sync 2-3: all 28 that were sent; 19 of 22 in the engine, not {scales}",
        f"sync 4: 16 of 28 that were sent, not {attention}; none of 22 in the engine",
        "sync 5: 1 of 28 that were sent, model.embed_tokens.weight",
        "sync 7: all 28 that were sent",
    )
    assert [row for row in changed.rows if row[0] in (5, 6)] == [(5, "sent", "model.embed_tokens.weight")]
    (text, every), form = ((command("history", path, *more).stdout for more in ((), ("-v",))), Section.to_dict(changed))
    assert all(f"  {line}\n" in text and f"  {line}\n" not in every for line in changed.brief)
    assert text.count("model.layers.2.mlp.gate.weight") == 0
    assert every.count("model.layers.2.mlp.gate.weight") == 6
    told = json.loads(command("history", path, "--format", "json").stdout)["sections"]
    assert told[1] == json.loads(json.dumps(form))
    assert "brief" not in told[1]
    assert [dict(zip(told[0]["columns"], row, strict=True))["time"] for row in told[0]["rows"]] == [
        "2026-01-01T00:00:00Z"
    ] * 7


def test_a_checkpoint_called_history_is_still_a_checkpoint(tmp_path: Path) -> None:
    done = command("./history")
    assert (done.returncode, "./history" in done.stderr) == (2, True)
    assert "cannot read the record" not in done.stderr


def test_a_record_is_held_against_a_save_and_against_responses(tmp_path: Path) -> None:
    import ckptcheck
    from ckptcheck.rollouts.build import Rollout, build_rollouts
    from ckptcheck.rollouts.files import write_rollouts

    source = CHECKPOINTS / "tiny-llama"
    identity = ckptcheck.identity(source).identity
    record = Record(tmp_path / "syncs.jsonl")
    for step, sent in enumerate(("a" * 64, identity)):
        record.append(
            SyncRecord(step=step, version=str(step), sent={"w": f"{step}"}, identity=sent, held_identity=identity)
        )
    report = ckptcheck.history(record.path, saved=source)
    assert report.verdict == "clean"
    assert "HIS019" in report.passed
    assert report.identities == {
        "last sync that was named": identity, "engine after it": identity, "saved checkpoint": identity
    }  # fmt: skip
    (section,) = (each for each in report.sections if each.title == "identity of the weights")
    assert section.brief == (
        "2 syncs sent 2 sets of weights, by their content; after sync 1 the engine held another set than was sent",
        f"{source} holds the set that was sent at step 1",
    )
    other = ckptcheck.history(record.path, saved=CHECKPOINTS / "tiny-llava")
    assert [finding.code for finding in other.findings] == ["HIS019"]
    with pytest.raises(CkptcheckError, match="has Megatron's names"):
        ckptcheck.history(record.path, saved=MEGATRON / "dense")
    with pytest.raises(CkptcheckError, match="like has no effect"):
        ckptcheck.history(record.path, like=source)
    answers = [
        Rollout(tokens=[5, 6, 7, 8], prompt=2, engine=[-0.5, -0.2], trainer=[-0.5, -0.2], versions=versions)
        for versions in (["0", "1"], ["1", "1"], ["7", "7"])
    ]
    write_rollouts(build_rollouts(answers), tmp_path / "rollouts.safetensors")
    report = ckptcheck.history(record.path, rollouts=tmp_path / "rollouts.safetensors")
    (found,) = report.findings
    assert (found.code, found.message) == (
        "HIS020", "1 response carries weight versions that no sync gave the engine: 7; the last sync gave 1"
    )  # fmt: skip
    (section,) = (each for each in report.sections if each.title == "weight versions of the responses")
    assert section.rows == (("0", 1, "a" * 64), ("1", 2, identity), ("7", 1, None))
