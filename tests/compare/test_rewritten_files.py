"""Files that are written to, or replaced, after their headers were read: no digest is made of two states."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import ckptcheck
from ckptcheck.checkpoint.source import Folder
from ckptcheck.errors import EvidenceError
from tests.factories.checkpoint_cases import CHECKPOINTS

SHARD = "model-00002-of-00003.safetensors"
OLD = 10**18
"""When the file was written, in nanoseconds."""


def turn_bytes(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[:-64] + bytes(byte ^ 1 for byte in content[-64:]))


def replace_by_another(path: Path) -> None:
    """The new file may get the number of the old one."""
    size = path.stat().st_size
    path.unlink()
    path.write_bytes(b"\x01" * (size + 8))


def turn_bytes_and_set_time_back(path: Path) -> None:
    """As ``rsync --inplace --times`` does; in place of a file, and not as another one, it is not seen."""
    turn_bytes(path)
    os.utime(path, ns=(OLD, OLD))


def replace_by_one_of_its_time(path: Path) -> None:
    new = path.with_name("new")
    shutil.copyfile(path, new)
    turn_bytes_and_set_time_back(new)
    new.rename(path)


def give_another_name(path: Path) -> None:
    """As ``cp -l`` does."""
    os.link(path, path.with_name("backup"))


def take_rights(path: Path) -> None:
    path.chmod(0o600)


@pytest.fixture(params=[turn_bytes, replace_by_another, replace_by_one_of_its_time])
def folder(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkpoint one of whose files changes as soon as its header was read."""
    return change_while_reading(request.param, tmp_path, monkeypatch)


def change_while_reading(change: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    made = tmp_path / "made"
    shutil.copytree(CHECKPOINTS / "tiny-llama-sharded", made)
    os.utime(made / SHARD, ns=(OLD, OLD))
    read, headers = Folder.read, []

    def read_and_change(self: Folder, name: str, start: int, length: int) -> bytes:
        raw = read(self, name, start, length)
        if name == SHARD and not headers and self.local == made:
            headers.append(name)
            change(made / SHARD)
        return raw

    monkeypatch.setattr(Folder, "read", read_and_change)
    return made


def test_no_manifest_is_of_two_states(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(EvidenceError, match=SHARD):
        ckptcheck.manifest(folder, tmp_path / "manifest.json")
    assert not (tmp_path / "manifest.json").exists()


def test_no_identity_is_of_two_states(folder: Path) -> None:
    with pytest.raises(EvidenceError, match=SHARD):
        ckptcheck.identity(folder)


def test_no_comparison_of_two_states_is_clean(folder: Path) -> None:
    report = ckptcheck.diff(CHECKPOINTS / "tiny-llama-sharded", folder)
    assert report.verdict != "clean"
    assert SHARD in str(report.to_dict())


def test_no_scan_of_two_states_is_clean(folder: Path) -> None:
    report = ckptcheck.scan(folder)
    # Which look finds it first depends on how busy the machine is.
    assert report.verdict == "incomplete"
    assert report.error in (
        f"could not read {SHARD}: it was replaced or written to while it was being read",
        f"could not read {SHARD}: it was replaced by another file since it was listed",
    )


def test_nothing_is_signed_that_is_of_two_states(folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("model_signing")
    from tests.factories.signatures import write_key

    with pytest.raises(EvidenceError, match=SHARD):
        ckptcheck.sign(folder, private_key=write_key(tmp_path)[0])
    assert not (folder / "model.sig").exists()


@pytest.mark.parametrize("change", [give_another_name, take_rights])
def test_a_file_whose_bytes_stay_is_read_to_the_end(
    change: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed = change_while_reading(change, tmp_path, monkeypatch)
    assert ckptcheck.scan(changed).verdict == "clean"
    assert ckptcheck.identity(changed) is not None
    assert ckptcheck.diff(CHECKPOINTS / "tiny-llama-sharded", changed).verdict == "clean"
    ckptcheck.manifest(changed, tmp_path / "manifest.json")


def test_names_that_come_and_go_are_no_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where one linked copy of a model is made and another one removed: the number of names is the same again."""

    def exchange_names(path: Path) -> None:
        os.link(path, tmp_path / "second")
        (tmp_path / "first").unlink()

    made = change_while_reading(exchange_names, tmp_path, monkeypatch)
    os.link(made / SHARD, tmp_path / "first")
    ckptcheck.manifest(made, tmp_path / "manifest.json")
    assert (tmp_path / "second").exists()
