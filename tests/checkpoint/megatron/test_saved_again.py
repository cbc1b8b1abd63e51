"""A torch_dist checkpoint that torch.distributed.checkpoint has written again: the layers of a stacked tensor lie in one chunk."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

import ckptcheck
from tests.paths import ROOT

DENSE = ROOT / "fixtures/megatron/dense"


@pytest.fixture
def saved_again(tmp_path: Path) -> Path:
    dcp = pytest.importorskip("torch.distributed.checkpoint")
    torch = pytest.importorskip("torch")
    run = shutil.copytree(DENSE, tmp_path / "run")
    folder = run / "iter_0000100"
    state: dict[str, Any] = {
        key: torch.empty(entry.size, dtype=entry.properties.dtype)
        for key, entry in dcp.FileSystemReader(folder).read_metadata().state_dict_metadata.items()
        if hasattr(entry, "properties")
    }
    dcp.load(state, checkpoint_id=folder, no_dist=True)
    for file in (".metadata", "__0_0.distcp"):
        (folder / file).unlink()
    dcp.save(state, checkpoint_id=folder, no_dist=True)
    return run


@pytest.mark.filterwarnings("ignore")
def test_layers_in_one_chunk_are_sound(saved_again: Path) -> None:
    before, after = ckptcheck.scan(DENSE), ckptcheck.scan(saved_again)
    assert not after.crashed
    assert [finding.code for finding in after.findings] == [finding.code for finding in before.findings]
    assert not ckptcheck.diff(DENSE, saved_again).findings
