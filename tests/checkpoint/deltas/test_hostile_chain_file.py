"""A file of ModelExpress that names a chain is anybody's: its versions are names of folders beside it, whatever they say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import ckptcheck
from ckptcheck.checkpoint.deltas.target import read_chain_file
from ckptcheck.errors import CkptcheckError


@pytest.mark.parametrize(
    "version", ["..", ".", "../../../etc", "/etc", "\ud800", "a\0b", "x" * 100_000, "a\nb", "~root"]
)
def test_a_version_leads_nowhere_else(version: str, tmp_path: Path) -> None:
    """Half a surrogate pair, which JSON can hold, was a traceback."""
    path = tmp_path / "chains" / "1.json"
    path.parent.mkdir()
    path.write_text(json.dumps({"full_version": version, "deltas": [version]}))
    named = read_chain_file(path)
    assert named is not None
    assert [Path(one).parent for one in named] == [tmp_path / "full", tmp_path / "deltas"]
    assert all(Path(one).resolve().is_relative_to(tmp_path) for one in named if len(one) < 4000)
    with pytest.raises(CkptcheckError, match="the base of the chain does not exist"):
        ckptcheck.scan(path)
