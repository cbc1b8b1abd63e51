"""Sparse files: they cost their maker nothing, and a scan reads no more of them than shows that they hold nothing."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from ckptcheck.checkpoint.open import open_checkpoint
from ckptcheck.linter.rule import Skip
from ckptcheck.live.runtime import dry_loading
from ckptcheck.live.runtime.dry_loading import copy_without_values
from tests.factories.checkpoint_cases import CHECKPOINTS
from tests.limited_child import run_limited

HEADER = 99_000_000


def write_sparse(path: Path, head: bytes, size: int) -> None:
    path.write_bytes(head)
    os.truncate(path, size)


def test_headers_and_an_index_of_nothing_are_not_read_whole(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(CHECKPOINTS / "tiny-llama", tmp_path / "m"))
    for number in range(60):
        head = HEADER.to_bytes(8, "little") + b'{"a'
        write_sparse(folder / f"extra-{number:02}.safetensors", head, HEADER + 100)
    write_sparse(folder / "model.safetensors.index.json", b'{"weight_map": {"', 510 << 20)

    def scan() -> str:
        ckpt = open_checkpoint(str(folder))
        index = ckpt.index
        assert index is not None
        kinds = {defect.kind for shard in ckpt.shards.values() for defect in shard.defects}
        return f"{sorted(kinds)} {[defect.kind for defect in index.defects]}"

    outcome = run_limited(scan, seconds=2, memory=200 << 20)
    assert (outcome.fault, outcome.answer) == ("", "['header-not-json'] ['not-json']")


def test_a_dry_load_copies_little_of_what_is_no_header(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of these files had 100 MB of zeros written to the temporary folder."""
    folder, copy = Path(shutil.copytree(CHECKPOINTS / "tiny-llama", tmp_path / "m")), tmp_path / "copy"
    write_sparse(folder / "extra.safetensors", HEADER.to_bytes(8, "little"), HEADER + 100)
    copy.mkdir()
    copy_without_values(open_checkpoint(str(folder)), copy)
    assert (copy / "extra.safetensors").stat().st_size == HEADER + 100
    assert (copy / "extra.safetensors").stat().st_blocks * 512 < 1 << 20
    for number in range(4):
        write_sparse(folder / f"extra-{number}.json", b"", 1 << 20)
    monkeypatch.setattr(dry_loading, "MOST_COPIED", 3 << 20)
    with pytest.raises(Skip, match=r"its configs and headers have more than 3.15 MB, which no loader needs"):
        copy_without_values(open_checkpoint(str(folder)), copy)
