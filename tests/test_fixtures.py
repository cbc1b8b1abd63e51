"""The committed checkpoints are what their script writes, and small."""

from __future__ import annotations

from pathlib import Path

from tests.factories.checkpoint_cases import CHECKPOINTS


def test_the_committed_checkpoints_are_what_the_script_writes(tmp_path: Path) -> None:
    import tiny

    tiny.write_all(tmp_path)
    written = {path.relative_to(tmp_path): path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    committed = {path.relative_to(CHECKPOINTS): path.read_bytes() for path in CHECKPOINTS.rglob("*") if path.is_file()}
    assert written.keys() == committed.keys()
    assert [str(path) for path in written if written[path] != committed[path]] == []
    for name in tiny.CHECKPOINTS:
        assert sum(len(raw) for path, raw in committed.items() if path.parts[0] == name) < 50_000
