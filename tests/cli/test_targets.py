"""What several targets mean together: shards of one model, folders of steps, and what the API makes of the same."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import ckptcheck
from ckptcheck.checkpoint.targets import find_checkpoints, join_files, resolve_targets
from tests.factories.checkpoint_cases import CHECKPOINTS
from tests.factories.command_line import run
from tests.limited_child import run_limited
from tests.paths import ROOT

SHARDED = CHECKPOINTS / "tiny-llama-sharded"


def targets_of(result: str) -> list[str]:
    reports = json.loads(result)
    return [report["target"] for report in reports.get("reports", [reports])]


@pytest.mark.parametrize(
    "folder", ["checkpoint-{}", "global_step_{}", "iter_{:07}", "step_{}", "epoch-{}", "x/{}/actor"]
)
def test_a_folder_of_steps_names_them_and_recursive_scans_all(tmp_path: Path, folder: str) -> None:
    steps = [folder.format(step) for step in (5, 200, 1000)]
    for step in steps:
        shutil.copytree(SHARDED, tmp_path / "runs" / step)
    (tmp_path / "runs/logs").mkdir()
    (tmp_path / "runs/config.json").write_text("{}")
    (tmp_path / "runs/latest").symlink_to(steps[-1])
    told = run(tmp_path, "scan", "runs")
    assert (told.returncode, told.stdout) == (2, "")
    assert told.stderr == (
        f"ckptcheck: runs is no checkpoint itself, but holds 3 checkpoints: {', '.join(steps)}\n"
        f"           name runs/{steps[-1]}, or scan all: ckptcheck scan --recursive runs\n"
    )
    result = run(tmp_path, "scan", "runs", "--recursive", "--headers-only", "--format", "json")
    assert (result.returncode, targets_of(result.stdout)) == (0, [f"runs/{step}" for step in steps])


def test_a_run_with_a_model_at_its_top_and_steps_below(tmp_path: Path) -> None:
    shutil.copytree(SHARDED, tmp_path / "runs")
    shutil.copytree(SHARDED, tmp_path / "runs/checkpoint-9")
    (tmp_path / "runs/checkpoint-9/model-00002-of-00003.safetensors").unlink()
    shutil.copytree(ROOT / "fixtures/megatron/dense", tmp_path / "runs/megatron")
    assert run(tmp_path, "scan", "runs", "--headers-only").returncode == 0
    result = run(tmp_path, "scan", "runs", "--recursive", "--headers-only", "--format", "json")
    assert (result.returncode, targets_of(result.stdout)) == (1, ["runs", "runs/checkpoint-9", "runs/megatron"])


def test_the_search_for_checkpoints_ends_and_passes_over_links_and_hidden_folders(tmp_path: Path) -> None:
    for name in ("a/b", ".hidden", "c"):
        shutil.copytree(SHARDED, tmp_path / name)
    (tmp_path / "c/loop").symlink_to(tmp_path)
    assert [path.name for path in find_checkpoints(tmp_path)] == ["c", "b"]
    assert list(find_checkpoints(tmp_path, most=1)) == []


def test_a_folder_that_cannot_be_listed_is_a_target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("step_1", "step_2"):
        shutil.copytree(SHARDED, tmp_path / "runs" / name)

    def scan_all_but_one(path: Path, listed: Callable[[Path], object] = os.scandir) -> object:
        if Path(path).name == "step_1":
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return listed(path)

    monkeypatch.setattr(os, "scandir", scan_all_but_one)
    runs = str(tmp_path / "runs")
    assert resolve_targets([runs], recursive=True, log=print) == [f"{runs}/step_1", f"{runs}/step_2"]


def test_recursive_without_a_folder_has_no_effect_and_says_so(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert "--recursive has no effect for targets on the Hub" in run(tmp_path, "scan", "hf://a/b", "--recursive").stderr
    assert "empty holds no file that can be checked" in run(tmp_path, "scan", "empty", "--recursive").stderr


SHARDS = [f"model-0000{number}-of-00003.safetensors" for number in (1, 2, 3)]
OTHERS = ["config.json", "model.safetensors.index.json"]


@pytest.mark.parametrize(
    ("named", "scanned"),
    [
        ([f"m/{name}" for name in SHARDS], ["m"]),
        ([f"m/{name}" for name in (*OTHERS, *SHARDS)], ["m"]),
        ([f"./m//{name}" for name in SHARDS[:2]], ["m"]),
        ([f"m/{name}" for name in SHARDS] + [f"n/{name}" for name in SHARDS], ["m", "n"]),
        (["m", *(f"m/{name}" for name in SHARDS)], ["m"]),
        ([f"bare/{name}" for name in SHARDS], ["bare"]),
        (["odd/a.safetensors", "odd/b.safetensors"], ["odd"]),
        (["single/config.json", "single/model.safetensors"], ["single"]),
        ([f"m/{SHARDS[0]}"], [f"m/{SHARDS[0]}"]),
        ([f"m/{SHARDS[0]}", f"n/{SHARDS[1]}"], [f"m/{SHARDS[0]}", f"n/{SHARDS[1]}"]),
        (["loras/a.safetensors", "loras/b.safetensors"], ["loras/a.safetensors", "loras/b.safetensors"]),
        (["m", "m", "nowhere", "hf://a/b"], ["m", "m", "nowhere", "hf://a/b"]),
        ([*(f"m/{name}" for name in SHARDS), "m/templates"], ["m"]),
        (["m/config.json", "m/README.md"], ["m/config.json", "m/README.md"]),
    ],
)
def test_files_of_one_model_are_that_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: list[str], scanned: list[str]
) -> None:
    for name in ("m", "n", "bare"):
        shutil.copytree(SHARDED, tmp_path / name)
    for name in OTHERS:
        (tmp_path / "bare" / name).unlink()
    shutil.copytree(CHECKPOINTS / "tiny-llama", tmp_path / "single")
    (tmp_path / "m/templates").mkdir()
    for folder in ("loras", "odd"):
        (tmp_path / folder).mkdir()
        for name in ("a", "b"):
            shutil.copy(tmp_path / "single/model.safetensors", tmp_path / folder / f"{name}.safetensors")
    index = {"weight_map": {"x": "a.safetensors", "y": "b.safetensors"}}
    (tmp_path / "odd/model.safetensors.index.json").write_text(json.dumps(index))
    monkeypatch.chdir(tmp_path)
    messages: list[str] = []
    assert join_files(named, messages.append) == scanned
    assert bool(messages) == (scanned != named)


def test_a_missing_shard_is_found_where_the_shell_names_those_that_are_there(tmp_path: Path) -> None:
    shutil.copytree(SHARDED, tmp_path / "m")
    (tmp_path / "m" / SHARDS[1]).unlink()
    result = run(tmp_path, "scan", *(f"m/{name}" for name in (SHARDS[0], SHARDS[2])))
    assert result.returncode == 1
    assert "IDX001 missing-shard" in result.stdout
    assert result.stderr == "m: the 2 files that you named there are one model, and are scanned as one\n"


def test_links_are_followed_where_the_user_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(SHARDED, tmp_path / "store")
    (tmp_path / "runs/step_1").mkdir(parents=True)
    for file in (tmp_path / "store").iterdir():
        (tmp_path / "runs/step_1" / file.name).symlink_to(file)
    shutil.copytree(ROOT / "fixtures/megatron/dense", tmp_path / "store/megatron")
    (tmp_path / "runs/latest").symlink_to("step_1")
    (tmp_path / "runs/megatron").symlink_to(tmp_path / "store/megatron")
    monkeypatch.chdir(tmp_path)
    (finding,) = ckptcheck.scan("runs/step_1").findings
    assert (finding.code, finding.message.startswith("5 files are only links")) == ("ST022", True)
    assert "ckptcheck scan --follow-links" in str(finding.hint)
    followed = ckptcheck.scan("runs/step_1", follow_links=True)
    assert (followed.verdict, dict(followed.counts)) == ("clean", dict(ckptcheck.scan("store").counts))
    reports = ckptcheck.scan("runs", recursive=True, follow_links=True)
    assert [(report.target, report.verdict) for report in reports] == [
        ("runs/megatron", "clean"),
        ("runs/step_1", "clean"),
    ]
    assert [report.target for report in ckptcheck.scan("runs", recursive=True)] == ["runs/step_1"]
    assert run(tmp_path, "scan", "runs/step_1", "--follow-links").returncode == 0
    assert run(tmp_path, "diff", "store", "runs/step_1").returncode == 2
    assert run(tmp_path, "diff", "store", "runs/step_1", "--follow-links").returncode == 0
    assert run(tmp_path, "manifest", "runs/step_1", "-o", "m.json", "--follow-links").returncode == 0
    assert run(tmp_path, "verify", "runs/step_1", "m.json", "--follow-links").returncode == 0


def test_a_link_is_followed_to_a_regular_file_only(tmp_path: Path) -> None:
    """A pipe would make the scan wait for ever, and a device has no end."""
    for number, name in enumerate(("pipe", "/dev/zero", "nowhere", "loop")):
        folder = Path(shutil.copytree(SHARDED, tmp_path / f"m{number}"))
        (folder / SHARDS[1]).unlink()
        (folder / SHARDS[1]).symlink_to(folder / SHARDS[1] if name == "loop" else tmp_path / name)
    os.mkfifo(tmp_path / "pipe")
    told = []
    for number in range(4):
        report = ckptcheck.scan(tmp_path / f"m{number}", follow_links=True)
        told += [finding.message for finding in report.findings if finding.code == "ST022"]
        assert report.verdict == "findings"
    assert told == [
        f"it is only a link, to {tmp_path}/pipe, which is no regular file, and was not followed",
        "it is only a link, to /dev/zero, which is no regular file, and was not followed",
        "it is only a link, to a file that does not exist, and was not followed",
        f"it is only a link, to {tmp_path}/m3/{SHARDS[1]}, which cannot be followed: Too many levels of symbolic links, "
        "and was not followed",
    ]


@pytest.mark.parametrize("kind", ["a pipe", "a device", "a sparse file", "a link to itself"])
def test_what_is_no_index_beside_named_files_is_not_read(tmp_path: Path, kind: str) -> None:
    """Files that are named one by one are joined by the index beside them: a pipe was waited for, a device filled the memory."""
    folder = Path(shutil.copytree(SHARDED, tmp_path / "m"))
    index = folder / "model.safetensors.index.json"
    index.unlink()
    if kind == "a pipe":
        os.mkfifo(index)
    elif kind == "a sparse file":
        index.touch()
        os.truncate(index, 40 << 30)
    else:
        index.symlink_to("/dev/zero" if kind == "a device" else index.name)
    targets = [str(path) for path in sorted(folder.glob("*.safetensors"))]
    outcome = run_limited(lambda: " ".join(join_files(targets, lambda _: None)))
    assert (outcome.fault, outcome.answer) == ("", str(folder))


def test_templates_that_are_a_link_to_themselves_are_passed_over(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(SHARDED, tmp_path / "m"))
    (folder / "additional_chat_templates").symlink_to("additional_chat_templates")
    assert not ckptcheck.scan(folder, headers_only=True).crashed


def test_links_of_a_megatron_run_are_followed_too(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "fixtures/megatron/dense", tmp_path / "store")
    (tmp_path / "run").mkdir()
    for entry in (tmp_path / "store").iterdir():
        (tmp_path / "run" / entry.name).symlink_to(entry)
    codes = [finding.code for finding in ckptcheck.scan(tmp_path / "run").findings]
    assert "MEG034" in codes
    assert ckptcheck.scan(tmp_path / "run", follow_links=True).verdict == "clean"
    for file in (tmp_path / "store/iter_0000100").iterdir():
        file.rename(tmp_path / file.name)
        file.symlink_to(tmp_path / file.name)
    assert ckptcheck.scan(tmp_path / "run", follow_links=True).verdict == "clean"
    assert ckptcheck.scan(tmp_path / "store").verdict != "clean"


def test_the_command_and_the_api_give_the_same_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for step in (5, 10):
        shutil.copytree(SHARDED, tmp_path / f"runs/step_{step}")
    (tmp_path / "runs/step_10" / SHARDS[1]).unlink()
    shutil.copytree(SHARDED, tmp_path / "m")
    monkeypatch.chdir(tmp_path)
    words = ["runs", *(f"m/{name}" for name in SHARDS), "nowhere"]
    result = run(tmp_path, "scan", *words, "--recursive", "--headers-only", "--format", "json")
    reports = ckptcheck.scan(words, recursive=True, headers_only=True)
    assert json.loads(result.stdout) == json.loads(json.dumps(reports.to_dict()))
    assert [report.target for report in reports] == ["runs/step_5", "runs/step_10", "m", "nowhere"]
    with pytest.raises(AttributeError, match="2 reports have a passed each: take one of them"):
        _ = ckptcheck.scan("runs", recursive=True).passed
    assert ckptcheck.scan("runs/step_5", recursive=True, headers_only=True).verdict == "clean"


def test_a_quoted_pattern_is_what_a_shell_makes_of_it(tmp_path: Path) -> None:
    for name in ("step_10", "step_9", "other"):
        shutil.copytree(SHARDED, tmp_path / name)
    result = run(tmp_path, "scan", "step_*", "--headers-only", "--format", "json")
    assert (result.returncode, targets_of(result.stdout)) == (0, ["step_9", "step_10"])
    result = run(tmp_path, "scan", "other/*.safetensors", "--headers-only", "--format", "json")
    assert (result.returncode, targets_of(result.stdout)) == (0, ["other"])
    nothing = run(tmp_path, "scan", "steps/*")
    assert (nothing.returncode, nothing.stdout) == (2, "")
    assert nothing.stderr.startswith("ckptcheck: steps/* matches no file or folder\n")
    one = run(tmp_path, "diff", "step_*", "other")
    assert (one.returncode, one.stderr.splitlines()[1].strip()) == (
        2,
        "this command takes one target and no pattern: name a folder, or one file",
    )


def test_a_folder_whose_name_looks_like_a_pattern_is_no_pattern(tmp_path: Path) -> None:
    shutil.copytree(SHARDED, tmp_path / "run[1]")
    shutil.copytree(SHARDED, tmp_path / "run1")
    result = run(tmp_path, "scan", "run[1]", "--headers-only", "--format", "json")
    assert targets_of(result.stdout) == ["run[1]"]


@pytest.mark.parametrize("target", ["file:///tmp/%00", "file://[", "file://\u2100/x", "file://"])
@pytest.mark.parametrize("verb", ["scan", "join"])
def test_an_address_of_no_file_is_one_sentence(tmp_path: Path, verb: str, target: str) -> None:
    result = run(tmp_path, verb, target)
    assert result.returncode == 2
    assert result.stderr.startswith(f"ckptcheck: {target} ")
    assert "Traceback" not in result.stderr


def test_an_address_may_name_what_is_no_text(tmp_path: Path) -> None:
    shutil.copytree(SHARDED, os.fsdecode(os.fsencode(tmp_path) + b"/\xff"))
    result = run(tmp_path, "scan", f"file://{tmp_path}/%ff", "--headers-only", "--format", "json")
    assert (result.returncode, json.loads(result.stdout)["verdict"]) == (0, "clean")
