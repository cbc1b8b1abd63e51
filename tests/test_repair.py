"""Repairs: what is safe is made right, what is not is refused with the reason, and the old file is kept."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from ckptcheck.checkpoint.open import open_checkpoint
from ckptcheck.linter import rule_loader
from ckptcheck.linter.runner import run_rules
from ckptcheck.verbs.repair import Repair, plan_index_repair
from tests.factories.checkpoint_cases import CHECKPOINTS, edit_tensors

INDEX = "model.safetensors.index.json"
SECOND = "model-00002-of-00003.safetensors"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(CHECKPOINTS / "tiny-llama-sharded", tmp_path / "ckpt"))


def plan(folder: Path) -> tuple[Repair | None, str | None]:
    return plan_index_repair(open_checkpoint(str(folder)))


def edit(folder: Path, change: Any) -> None:
    value = json.loads((folder / INDEX).read_text(encoding="utf-8"))
    change(value)
    (folder / INDEX).write_text(json.dumps(value))


def repaired(folder: Path) -> dict[str, Any]:
    shards = {path.name: path.read_bytes() for path in folder.glob("*.safetensors")}
    repair, reason = plan(folder)
    assert reason is None
    assert repair is not None
    repair.apply()
    assert plan(folder) == (None, None)
    assert run_rules(open_checkpoint(str(folder)), rule_loader.load_rules()).verdict == "clean"
    assert {path.name: path.read_bytes() for path in folder.glob("*.safetensors")} == shards, "a shard was touched"
    value: dict[str, Any] = json.loads((folder / INDEX).read_text(encoding="utf-8"))
    return value


def test_a_sound_index_needs_none(folder: Path) -> None:
    assert plan(folder) == (None, None)


def test_a_missing_index_is_written(folder: Path) -> None:
    original = json.loads((folder / INDEX).read_text(encoding="utf-8"))
    (folder / INDEX).unlink()
    value = repaired(folder)
    assert value["weight_map"] == original["weight_map"]
    assert value["metadata"] == {"total_size": 8032}
    assert not list(folder.glob("*.orig*"))


@pytest.mark.parametrize(
    "change",
    [
        lambda value: value["weight_map"].update({"lm_head.weight": SECOND}),
        lambda value: value["weight_map"].pop("lm_head.weight"),
        lambda value: value["metadata"].update(total_size=1),
        lambda value: value["metadata"].pop("total_size"),
        lambda value: value.pop("metadata"),
        lambda value: value.pop("weight_map"),
        lambda value: value.update(weight_map={name: f"x-{file}" for name, file in value["weight_map"].items()}),
    ],
)
def test_what_is_wrong_or_stale_is_written_anew_and_the_old_file_kept(folder: Path, change: Any) -> None:
    original = json.loads((folder / INDEX).read_text(encoding="utf-8"))
    edit(folder, change)
    broken = (folder / INDEX).read_bytes()
    assert repaired(folder)["weight_map"] == original["weight_map"]
    assert (folder / f"{INDEX}.orig").read_bytes() == broken


def test_an_older_copy_is_not_overwritten(folder: Path) -> None:
    (folder / f"{INDEX}.orig").write_text("precious")
    edit(folder, lambda value: value["metadata"].update(total_size=1))
    repaired(folder)
    assert (folder / f"{INDEX}.orig").read_text() == "precious"
    assert (folder / f"{INDEX}.orig1").exists()


def test_an_index_that_is_no_json_is_written_anew(folder: Path) -> None:
    (folder / INDEX).write_bytes(b'{"weight_map": {"a')
    repaired(folder)


def _lose(folder: Path) -> None:
    (folder / SECOND).unlink()


def _tear(folder: Path) -> None:
    (folder / SECOND).write_bytes(b"\0" * 64)
    (folder / INDEX).unlink()


def _gap(folder: Path) -> None:
    _lose(folder)
    (folder / INDEX).unlink()


def _second_family(folder: Path) -> None:
    shutil.copy(folder / SECOND, folder / "model-00001-of-00002.safetensors")
    (folder / INDEX).unlink()


def _twice(folder: Path) -> None:
    edit_tensors(folder / SECOND, {"lm_head.weight": {"dtype": "F32", "shape": [32, 8]}})


def _hidden_loss(folder: Path) -> None:
    edit(folder, lambda value: value["weight_map"].update({"mtp.fc.weight": SECOND}))


@pytest.mark.parametrize(
    ("harm", "reason"),
    [
        (_lose, f"{SECOND} is missing or unreadable"),
        (_tear, f"{SECOND} is missing or unreadable"),
        (_gap, "the folder holds 2 of 3 shards"),
        (_second_family, "the folder holds more than one set of shards"),
        (_twice, "lm_head.weight stands in more than one shard"),
        (_hidden_loss, "the index names mtp.fc.weight, which no shard holds; a new index would hide that"),
    ],
)
def test_what_is_not_safe_is_refused_with_the_reason(folder: Path, harm: Any, reason: str) -> None:
    harm(folder)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert plan(folder) == (None, reason)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_the_diff_of_a_new_file_and_of_a_change(folder: Path) -> None:
    edit(folder, lambda value: None)
    (folder / INDEX).write_text(
        json.dumps(json.loads((folder / INDEX).read_text()) | {"metadata": {"total_size": 1}}, indent=2)
    )
    repair, _ = plan(folder)
    assert repair is not None
    assert '-    "total_size": 1\n+    "total_size": 8032\n' in repair.diff()
    (folder / INDEX).unlink()
    repair, _ = plan(folder)
    assert repair is not None
    assert repair.diff().startswith(f"--- /dev/null\n+++ b/{INDEX}\n@@ -0,0 +1,")


LINKED = {
    "another file": lambda folder: folder.parent / "secret.json",
    "a file that is missing": lambda folder: "nowhere",
}


@pytest.mark.parametrize("goal", LINKED)
def test_a_link_out_of_the_folder_is_neither_shown_nor_copied(folder: Path, goal: str) -> None:
    (folder.parent / "secret.json").write_text('{"weight_map": {}, "password": "precious"}')
    (folder / INDEX).unlink()
    (folder / INDEX).symlink_to(LINKED[goal](folder))
    repair, reason = plan(folder)
    assert repair is None
    assert str(reason).startswith(f"{INDEX} is a link to ")
    assert not list(folder.glob("*.orig*"))


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_pipe_in_place_of_the_index_is_refused_at_once(folder: Path) -> None:
    (folder / INDEX).unlink()
    os.mkfifo(folder / INDEX)  # reading it would wait for a writer for ever
    assert plan(folder) == (None, f"{INDEX} is no regular file")


def test_a_backup_is_never_written_through_a_link(folder: Path, tmp_path: Path) -> None:
    (folder / f"{INDEX}.orig").symlink_to(tmp_path / "elsewhere")
    edit(folder, lambda value: value["metadata"].update(total_size=1))
    repair, _ = plan(folder)
    assert repair is not None
    repair.apply()
    assert not (tmp_path / "elsewhere").exists()
    assert (folder / f"{INDEX}.orig1").is_file()
