"""Addresses of multi-storage-client, whose profile names a folder here. `pip install multi-storage-client` runs it."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

import ckptcheck
from ckptcheck.checkpoint.open import open_checkpoint
from tests.paths import FIXTURES

LLAMA = FIXTURES / "checkpoints" / "tiny-llama-sharded"


@pytest.fixture
def storage(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The folder of the profile that is called as `tmp_path` is, with a checkpoint in runs/step_1."""
    pytest.importorskip("multistorageclient", reason="pip install multi-storage-client")
    folder = tmp_path / "storage"
    shutil.copytree(LLAMA, folder / "runs" / "step_1")
    shutil.copytree(FIXTURES / "megatron" / "tp2-pp2", folder / "megatron")
    provider = {"type": "file", "options": {"base_path": str(folder)}}
    # The library keeps the client of a profile, so each test has a profile of its own.
    (tmp_path / "msc.json").write_text(json.dumps({"profiles": {tmp_path.name: {"storage_provider": provider}}}))
    monkeypatch.setenv("MSC_CONFIG", str(tmp_path / "msc.json"))
    return folder


@pytest.fixture
def root(storage: Path) -> str:
    """The address of the profile."""
    return f"msc://{storage.parent.name}"


def form(report: ckptcheck.Report) -> dict[str, object]:
    return {**report.to_dict(), "target": ""}


def test_the_report_of_the_folder(root: str) -> None:
    assert form(ckptcheck.scan(f"{root}/runs/step_1", values=True)) == form(ckptcheck.scan(LLAMA))
    run = FIXTURES / "megatron" / "tp2-pp2"
    assert form(ckptcheck.scan(f"{root}/megatron", values=True)) == form(ckptcheck.scan(run))
    assert [report.target for report in ckptcheck.scan(f"{root}/runs/*/")] == [f"{root}/runs/step_1"]


def test_a_manifest_is_written_and_read(storage: Path, root: str) -> None:
    written = ckptcheck.manifest(f"{root}/runs/step_1", f"{root}/runs/m.json")
    assert written.tensors == ckptcheck.manifest(LLAMA).tensors
    assert (storage / "runs" / "m.json").is_file()
    assert ckptcheck.verify(LLAMA, f"{root}/runs/m.json").verdict == "clean"


def test_an_object_that_is_replaced(storage: Path, root: str) -> None:
    opened = open_checkpoint(f"{root}/runs/step_1")
    name = next(iter(opened.shards))
    path = storage / "runs" / "step_1" / name
    path.write_bytes(bytes(path.stat().st_size))
    os.utime(path, (1, 1))
    with pytest.raises(OSError, match="it was replaced while it was being read"):
        opened.source.read(name, 0, 8)
    path.unlink()
    with pytest.raises(OSError, match="it is no longer in the bucket"):
        opened.source.read(name, 0, 8)


def test_a_profile_that_is_not_there(storage: Path) -> None:
    with pytest.raises(ckptcheck.CkptcheckError, match="the profile other of multi-storage-client cannot be used"):
        ckptcheck.scan("msc://other/x")
