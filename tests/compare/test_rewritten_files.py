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


def turn_bytes(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[:-64] + bytes(byte ^ 1 for byte in content[-64:]))


def replace_by_another(path: Path) -> None:
    """The new file may get the number of the old one."""
    size = path.stat().st_size
    path.unlink()
    path.write_bytes(b"\x01" * (size + 8))


@pytest.fixture(params=[turn_bytes, replace_by_another])
def folder(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkpoint one of whose files changes as soon as its header was read."""
    made = tmp_path / "made"
    shutil.copytree(CHECKPOINTS / "tiny-llama-sharded", made)
    os.utime(made / SHARD, ns=(10**18, 10**18))
    change: Callable[[Path], None] = request.param
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
