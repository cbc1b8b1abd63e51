"""The saves of runs as trainers write them, sound and damaged, from files to the report."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.numpy import load_file, save_file

import ckptcheck
from ckptcheck.checkpoint.megatron.folders import FolderTree
from ckptcheck.checkpoint.torch_archive import UnreadableArchive
from ckptcheck.errors import CkptcheckError
from ckptcheck.linter.report import Report
from ckptcheck.runs.history.record import Record, SyncRecord
from ckptcheck.runs.saves import find_saves as finding
from ckptcheck.runs.saves.find_saves import find_saves
from ckptcheck.runs.saves.open_series import open_kept_saves, open_series
from ckptcheck.runs.saves.state_files import MOST_JSON, read_json_numbers, read_state_file
from tests.doubles.object_server import ObjectServer
from tests.factories.saved_runs import draw_weights, write_rank_files, write_torch_file, write_trainer_save
from tests.limited_child import run_limited
from tests.paths import FIXTURES

STEPS = (10, 20, 30, 40)
DENSE = FIXTURES / "megatron" / "dense" / "iter_0000100"
LEGACY = FIXTURES / "megatron" / "legacy-tp2" / "iter_0000100"


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("written")
    for step in STEPS:
        write_trainer_save(run, step)
    return run


@pytest.fixture
def run(written: Path, tmp_path: Path) -> Path:
    shutil.copytree(written, tmp_path / "run", copy_function=shutil.copy2)
    return tmp_path / "run"


def codes(report: Report) -> list[tuple[str, str, str]]:
    return [(finding.severity, finding.code, (finding.file or "").partition("/")[0]) for finding in report.findings]


def test_a_sound_run_is_clean(run: Path) -> None:
    report = ckptcheck.series(run)
    assert (report.verdict, report.findings) == ("clean", ())
    assert {"SER001", "SER003", "SER005", "SER006", "SER009", "SER010"} <= {*report.passed}
    rows = report.sections[0].rows
    assert [row[1] for row in rows] == [*STEPS]
    assert [row[4] for row in rows[1:]] == [12] * 3
    assert [row[6] for row in rows[1:]] == [24] * 3
    assert all(0.009 < float(row[7] or 0) < 0.011 for row in rows[1:])


def _repeat(run: Path) -> None:
    write_trainer_save(run, 40, weights_of=20, moments_of=20)


def _repeat_moments(run: Path) -> None:
    write_trainer_save(run, 40, moments_of=30)


def _freeze(run: Path) -> None:
    new, old = draw_weights(40), draw_weights(30)
    save_file(
        {name: old[name] if ".1." in name else new[name] for name in new}, run / "checkpoint-40/model.safetensors"
    )


def _overwrite(run: Path) -> None:
    weights = draw_weights(40)
    weights["model.layers.1.mlp.up_proj.weight"] = weights["model.layers.1.mlp.up_proj.weight"][::-1].copy()
    save_file(weights, run / "checkpoint-40/model.safetensors")


def _stop_scheduler(run: Path) -> None:
    shutil.copy2(run / "checkpoint-20/scheduler.pt", run / "checkpoint-40/scheduler.pt")


def _mistake_state(run: Path) -> None:
    shutil.copy2(run / "checkpoint-20/trainer_state.json", run / "checkpoint-40/trainer_state.json")


def _cut(run: Path) -> None:
    os.truncate(run / "checkpoint-40/model.safetensors", 5000)


def _cut_optimizer(run: Path) -> None:
    os.truncate(run / "checkpoint-40/optimizer.pt", 5000)


def _lose_optimizer(run: Path) -> None:
    (run / "checkpoint-40/optimizer.pt").unlink()


def _mix(run: Path) -> None:
    weights = draw_weights(30)
    save_file({name: value[::-1].copy() for name, value in weights.items()}, run / "checkpoint-30/model.safetensors")


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (_repeat, [("error", "SER001", "checkpoint-40")]),
        (_repeat_moments, [("error", "SER001", "checkpoint-40")]),
        (_freeze, [("error", "SER003", "checkpoint-40")]),
        (_overwrite, [("warning", "SER005", "checkpoint-40")]),
        (_stop_scheduler, [("error", "SER006", "checkpoint-40")] * 2),
        (_mistake_state, [("error", "SER006", "checkpoint-40")]),
        (_cut, [("error", "SER009", "checkpoint-40")]),
        (_cut_optimizer, [("error", "SER009", "checkpoint-40")]),
        (_lose_optimizer, [("error", "SER010", "checkpoint-40")]),
        (_mix, [("error", "SER012", "checkpoint-30")]),
    ],
)
def test_a_damaged_save_is_named(
    run: Path, damage: Callable[[Path], None], expected: list[tuple[str, str, str]]
) -> None:
    damage(run)
    found = codes(ckptcheck.series(run))
    assert found[: len(expected)] == expected
    assert {code for _, code, _ in found} <= {code for _, code, _ in expected} | {"SER004"}


def test_one_save_is_never_a_pass(run: Path) -> None:
    report = ckptcheck.series(run / "checkpoint-40")
    assert (report.verdict, report.exit_code(), report.passed) == ("incomplete", 2, ())
    assert report.error == "could not compare checkpoint-*: checkpoint-40 is its only save"


def test_saves_that_are_named_one_by_one_are_one_strand(run: Path) -> None:
    report = ckptcheck.series([run / "checkpoint-10", run / "checkpoint-20"])
    assert (report.verdict, report.subject) == ("clean", "2 saves · step 10–20 · checkpoint-*")


def test_folders_without_a_step_are_left_out(run: Path) -> None:
    shutil.copytree(run / "checkpoint-40", run / "best")
    (run / "last").symlink_to("checkpoint-40")
    shutil.copytree(run / "checkpoint-40", run / "tmp-checkpoint-50")
    report = ckptcheck.series(run)
    assert report.verdict == "clean"
    assert report.read["left out"] == [
        "best: its path has no step",
        "last: its path has no step",
        "tmp-checkpoint-50: its name says that it was not finished",
    ]


def test_nothing_to_compare_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("nothing", encoding="utf-8")
    for target in (tmp_path, tmp_path / "nowhere", tmp_path / "notes.txt"):
        with pytest.raises(CkptcheckError):
            ckptcheck.series(target)


def test_a_folder_that_was_never_filled_is_named(run: Path) -> None:
    (run / "checkpoint-50").mkdir()
    (run / "eval/step_50").mkdir(parents=True)
    assert codes(ckptcheck.series(run)) == [("error", "SER009", "checkpoint-50")]


# --- the layouts of trainers ---


def test_files_of_ranks(tmp_path: Path) -> None:
    for step in STEPS:
        write_rank_files(tmp_path, step)
    report = ckptcheck.series(tmp_path)
    assert (report.verdict, report.subject) == ("clean", "4 saves · step 10–40 · global_step_*/actor")
    write_rank_files(tmp_path, 40, stale=(1, 30))
    report = ckptcheck.series(tmp_path)
    assert [finding.message for finding in report.findings if finding.code in ("SER004", "SER006")] == [
        "global_step_40/actor: model_world_size_2_rank_1.pt holds the 12 tensors of global_step_30/actor, bit for bit, while 2"
        " other files moved",
        "global_step_40/actor: optim_world_size_2_rank_1.pt holds the 12 tensors of global_step_30/actor, bit for bit, while 2"
        " other files moved",
        "global_step_40/actor: extra_state_world_size_2_rank_1.pt: lr_scheduler.last_epoch is 30, and 40 on other ranks",
        "global_step_40/actor: extra_state_world_size_2_rank_1.pt: lr_scheduler._step_count is 31, and 41 on other ranks",
    ]


def test_a_rank_that_wrote_nothing(tmp_path: Path) -> None:
    for step in (10, 20):
        write_rank_files(tmp_path, step)
    (tmp_path / "global_step_20/actor/model_world_size_2_rank_1.pt").unlink()
    messages = [each.message for each in ckptcheck.series(tmp_path).findings if each.code == "SER009"]
    assert messages == ["global_step_20/actor is not whole: model_world_size_2 lacks the file of 1 rank"]


def test_the_tracker_within_a_save_is_of_that_save(run: Path) -> None:
    """Accelerate and DeepSpeed write ``latest`` into each checkpoint-N."""
    for step in STEPS:
        (run / f"checkpoint-{step}/latest").write_text(f"global_step{step}", encoding="ascii")
    assert ckptcheck.series(run).findings == ()


def test_the_tracker_of_a_run(tmp_path: Path) -> None:
    for step in (10, 20):
        write_rank_files(tmp_path, step)
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("30", encoding="ascii")
    assert ("error", "SER015", "latest_checkpointed_iteration.txt") in codes(ckptcheck.series(tmp_path))


def test_megatron_repeats_a_save(tmp_path: Path) -> None:
    for name in ("iter_0000100", "iter_0000200"):
        shutil.copytree(DENSE, tmp_path / name)
    found = codes(ckptcheck.series(tmp_path))
    assert ("error", "SER001", "iter_0000200") in found
    assert ("error", "SER006", "iter_0000200") in found


def test_what_two_grids_hold_is_one_set_of_weights(tmp_path: Path) -> None:
    """The proof of a resume: torch_dist on one rank, and legacy files of two tensor-parallel ranks."""
    shutil.copytree(DENSE, tmp_path / "run/iter_0000100")
    shutil.copytree(LEGACY, tmp_path / "resumed/iter_0000100")
    report = ckptcheck.series(tmp_path / "run", resumed=tmp_path / "resumed")
    assert "SER014" in report.passed
    assert report.verdict == "clean"
    other = open_series([str(tmp_path / "resumed")]).strands[0].saves[0]
    assert other.identity == open_series([str(tmp_path / "run")]).strands[0].saves[0].identity


def test_a_resumed_run_that_lost_a_tensor(run: Path, tmp_path: Path) -> None:
    write_trainer_save(tmp_path / "resumed", 40)
    assert "SER014" in ckptcheck.series(run, resumed=tmp_path / "resumed").passed
    weights = draw_weights(40)
    weights["lm_head.weight"] = weights["lm_head.weight"][::-1].copy()
    save_file(weights, tmp_path / "resumed/checkpoint-40/model.safetensors")
    (finding,) = ckptcheck.series(run, resumed=tmp_path / "resumed").findings
    assert finding.message == "1 tensor of 12 is other in checkpoint-40 than in checkpoint-40: lm_head.weight"


def test_strands_of_one_run_lie_side_by_side(tmp_path: Path) -> None:
    for step in (10, 20):
        write_trainer_save(tmp_path / "a", step)
        shutil.move(tmp_path / f"a/checkpoint-{step}", tmp_path / f"a/weights/step_{step}")
        write_torch_file(tmp_path / f"a/checkpoints/step_{step}/trainer/rank_0.pt", dict(draw_weights(step)))
    found = find_saves([str(tmp_path / "a")])
    assert [(save.strand, save.number) for save in found.saves] == [
        ("checkpoints/step_*/trainer", 10),
        ("checkpoints/step_*/trainer", 20),
        ("weights/step_*", 10),
        ("weights/step_*", 20),
    ]


# --- what is read, and what is known already ---


def test_only_what_is_new_is_read(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ckptcheck.runs.saves import open_series as module

    cache, read = tmp_path / "saves.json", []
    real = module.read_save

    def count_reads(found, *arguments, **options):  # type: ignore[no-untyped-def]
        read.append(found.number)
        return real(found, *arguments, **options)

    monkeypatch.setattr(module, "read_save", count_reads)
    first = ckptcheck.series(run, cache=cache)
    assert read == [*STEPS]
    write_trainer_save(run, 50)
    write_trainer_save(run, 20)
    read.clear()
    second = ckptcheck.series(run, cache=cache)
    assert read == [20, 50]
    assert second.read["saves"] == "2 saves read, 3 unchanged since the last call"
    assert second.sections[0].rows[:4] == first.sections[0].rows
    read.clear()
    assert ckptcheck.series(run, cache=cache).findings == second.findings
    assert read == []


def test_a_file_of_another_kind_is_no_cache(run: Path, tmp_path: Path) -> None:
    (tmp_path / "other.json").write_text('{"schema": "ckptcheck-report/1"}', encoding="utf-8")
    with pytest.raises(CkptcheckError, match="is not what ckptcheck series --cache wrote"):
        ckptcheck.series(run, cache=tmp_path / "other.json")
    assert (tmp_path / "other.json").read_text(encoding="utf-8") == '{"schema": "ckptcheck-report/1"}'
    assert open_kept_saves(tmp_path / "none.json").saves == {}


def test_a_run_in_an_object_store(run: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("obstore", reason="pip install obstore")
    with ObjectServer("s3") as server:
        server.set_environment(monkeypatch.setenv, tmp_path)
        for step in STEPS:
            server.push("models", run / f"checkpoint-{step}", f"run/checkpoint-{step}")
        report = ckptcheck.series("s3://models/run", cache=tmp_path / "saves.json")
        assert (report.verdict, report.findings) == ("clean", ())
        write_trainer_save(run, 40, weights_of=30, moments_of=30)
        server.push("models", run / "checkpoint-40", "run/checkpoint-40")
        report = ckptcheck.series("s3://models/run", cache=tmp_path / "saves.json")
    assert report.read["saves"] == "1 save read, 3 unchanged since the last call"
    assert ("error", "SER001", "checkpoint-40") in codes(report)


def test_digests_are_those_of_the_identity(run: Path) -> None:
    (strand,) = open_series([str(run)]).strands
    for save in strand.saves:
        assert save.identity == ckptcheck.identity(save.address).identity
    assert load_file(run / "checkpoint-10/model.safetensors").keys() == strand.saves[0].weights.keys()


# --- the live trainer ---


def test_a_record_without_identities_cannot_be_compared(run: Path, tmp_path: Path) -> None:
    Record(tmp_path / "record.jsonl").append(SyncRecord(step=10, run="one", sent={"a": "0" * 32}))
    report = ckptcheck.series(run, history=tmp_path / "record.jsonl")
    assert dict(report.crashed)["SER013"].startswith("the record has no identity of the weights")
    assert report.exit_code() == 2


def test_a_save_is_what_the_live_trainer_sent(run: Path, tmp_path: Path) -> None:
    record = Record(tmp_path / "record.jsonl")
    for step in STEPS:
        identity = ckptcheck.identity(run / f"checkpoint-{step}").identity
        record.append(SyncRecord(step=step, run="one", sent={"a": f"{step:032x}"}, identity=identity))
    assert "SER013" in ckptcheck.series(run, history=tmp_path / "record.jsonl").passed
    old, new = (ckptcheck.identity(run / f"checkpoint-{step}").identity[:12] for step in (30, 40))
    write_trainer_save(run, 40, weights_of=30)
    messages = [each.message for each in ckptcheck.series(run, history=tmp_path / "record.jsonl").findings]
    assert (
        f"checkpoint-40 has the identity {old}, and the live trainer had {new} at step 40; it is what the trainer held at step 30"
        in messages
    )


# --- the report ---


@pytest.mark.parametrize("of", [20, 30])
def test_the_page_has_pictures(run: Path, of: int) -> None:
    write_trainer_save(run, 40, weights_of=of, moments_of=of)
    report = ckptcheck.series(run, pictures=True)
    titles = [picture.title for picture in report.pictures]
    assert titles == [
        "What moved from save to save",
        "What moved in the optimizer",
        "How far the weights moved",
        "What the counters say",
    ]
    raster = report.pictures[0]
    assert {cell.state for (_, column), cell in raster.cells.items() if column == 3} == {"repeated"}  # type: ignore[union-attr]


# --- saves made to be costly, or to lead elsewhere ---


def test_long_keys_make_no_long_work(tmp_path: Path) -> None:
    """Each value of a list has a path of its own: a key of half a megabyte above 16,000 of them once took minutes."""
    path = tmp_path / "scheduler.pt"
    write_torch_file(path, {"x" * 500_000: {"step": list(range(16_000))}})
    source = FolderTree(tmp_path, str(tmp_path), [""])

    def read() -> str:
        with pytest.raises(UnreadableArchive) as caught:
            read_state_file(source, path.name)
        return str(caught.value)

    outcome = run_limited(read)
    assert (outcome.fault, outcome.answer) == ("", "it has keys that come to more than 1,000 characters"), outcome


def test_many_saves_and_many_folders_without_one_are_found_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    class Run:
        """Every other folder holds a save."""

        def list_names(self, folder: str) -> list[str]:
            return ["model.safetensors"] if folder and int(folder.rpartition("-")[2]) % 2 else []

        def list_subfolders(self, folder: str) -> list[str]:
            return [] if folder else [f"checkpoint-{number}" for number in range(1, 18_000)]

    monkeypatch.setattr(finding, "open_tree", lambda _: Run())
    outcome = run_limited(lambda: str(len(find_saves(["/run"]).empty_folders)))
    assert (outcome.fault, outcome.answer) == ("", "8999"), outcome


@pytest.mark.parametrize("name", ["latest", "latest_checkpointed_iteration.txt", "checkpoint-20/trainer_state.json"])
def test_a_pipe_or_a_link_in_a_run_is_not_read(run: Path, tmp_path: Path, name: str) -> None:
    (tmp_path / "secret").write_text("the secret beside it")
    (run / name).unlink(missing_ok=True)
    (run / name).symlink_to(tmp_path / "secret")
    assert "the secret" not in json.dumps(ckptcheck.series(run).to_dict())
    (run / name).unlink()
    os.mkfifo(run / name)
    ckptcheck.series(run)


@pytest.mark.parametrize("number", ["9" * 400, "-" + "9" * 400, "1e400", "true", '"x"', "null"])
def test_a_number_in_the_log_of_a_trainer_that_no_float_holds(number: str) -> None:
    entries = [(5, number), (number, 0.1), (7, 0.1)]
    log = "[" + ",".join(f'{{"step": {step}, "learning_rate": {rate}}}' for step, rate in entries) + "]"
    counters, rates, logged = read_json_numbers(
        f'{{"global_step": {number}, "lr": {number}, "log_history": {log}}}'.encode()
    )
    assert (counters, rates) == ({}, {})
    assert logged == {"7": 0.1}


def test_a_log_with_nan_has_its_counters() -> None:
    """Trainers write the norms of gradients with Python's JSON, which has NaN."""
    state = b'{"global_step": 20, "log_history": [{"step": 10, "learning_rate": 0.1, "grad_norm": NaN}]}'
    assert read_json_numbers(state) == ({"global_step": 20.0}, {}, {"10": 0.1})


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "the file is empty"),
        (b'{"global_step": 2', "it is not JSON"),
        (bytes(99), "it is not JSON"),
        (b"[" * 5000, "nested"),
    ],
)
def test_counters_that_cannot_be_read_agree_with_nothing(run: Path, content: bytes, why: str) -> None:
    (run / "checkpoint-40/trainer_state.json").write_bytes(content)
    report = ckptcheck.series(run)
    assert [(one.code, one.file) for one in report.findings] == [("SER009", "checkpoint-40")]
    assert "trainer_state.json cannot be read: " in report.findings[0].message
    assert why in report.findings[0].message


def test_a_config_that_cannot_be_read_is_like_none_of_the_others(run: Path) -> None:
    """Saves of two runs differ in their configs; one that could not be read was taken for an equal one."""
    (run / "checkpoint-20/config.json").write_bytes(b"")
    report = ckptcheck.series(run)
    assert [(one.code, one.file) for one in report.findings] == [("SER009", "checkpoint-20")]
    assert "config.json cannot be read: the file is empty" in report.findings[0].message


def test_a_state_file_of_nothing_is_not_passed_over(run: Path) -> None:
    os.truncate(run / "checkpoint-40/trainer_state.json", MOST_JSON + 1)
    report = ckptcheck.series(run)
    assert "trainer_state.json cannot be read: it has more than 134,217,728 bytes" in report.findings[0].message


@pytest.mark.parametrize("name", ["optimizer.pt", "scheduler.pt", "trainer_state.json", "config.json"])
@pytest.mark.parametrize("goal", ["outside", "nowhere", "{}"], ids=["outside", "dangling", "to itself"])
def test_a_link_that_is_not_followed_is_no_whole_save(run: Path, tmp_path: Path, name: str, goal: str) -> None:
    """What it leads to was not read, so the counters of that save agree with nothing."""
    path = run / "checkpoint-20" / name
    path.rename(tmp_path / "outside")
    path.symlink_to(name if goal == "{}" else tmp_path / goal)
    report = ckptcheck.series(run)
    assert [(one.code, one.severity) for one in report.findings] == [("SER009", "warning")]
    assert f"{name} is a link to " in report.findings[0].message
    if goal == "outside":
        assert ckptcheck.series(run, follow_links=True).verdict == "clean"


def test_a_link_beside_the_state_is_no_matter(run: Path, tmp_path: Path) -> None:
    (run / "checkpoint-20" / "tokenizer.json").symlink_to(tmp_path / "nowhere")
    (run / "checkpoint-20" / "rng_state.pth").symlink_to(tmp_path / "nowhere")
    assert ckptcheck.series(run).verdict == "clean"
