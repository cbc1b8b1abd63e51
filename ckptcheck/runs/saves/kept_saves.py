"""Keeps what was read of saves in a file, so that the next call reads only the saves that are new or were replaced."""

from __future__ import annotations

from pathlib import Path

import msgspec

from ckptcheck.errors import CkptcheckError
from ckptcheck.runs.saves.save import Save
from ckptcheck.text.file_io import read_whole_file, replace_file

SCHEMA = "ckptcheck-saves/1"
LARGEST = 1 << 30
"""Bytes of the largest file to read: 10,000 saves of 500 tensors have about as many."""


class KeptSave(msgspec.Struct):
    """A save with what it was read from."""

    versions: dict[str, str]
    """File → what changes when it is replaced."""
    like: str
    """The checkpoint that named its tensors; "" for none."""
    save: Save


class KeptSaves(msgspec.Struct):
    """The content of the file."""

    schema: str = SCHEMA
    saves: dict[str, KeptSave] = {}
    """Address → the save."""

    def find(self, address: str, versions: dict[str, str], like: str) -> Save | None:
        """Return a save whose files are all as they were when it was read; None where it has to be read."""
        kept = self.saves.get(address)
        return kept.save if kept is not None and kept.versions == versions and kept.like == like else None


def open_kept_saves(path: Path) -> KeptSaves:
    """Read the file; a file that does not exist keeps nothing yet. Raises CkptcheckError for a file of another kind."""
    if not path.exists():
        return KeptSaves()
    try:
        kept = msgspec.json.decode(read_whole_file(path, LARGEST), type=KeptSaves)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        kept = None
    except OSError as error:
        raise CkptcheckError(f"{path} cannot be read: {error.strerror or error}") from error
    if kept is None or kept.schema != SCHEMA:
        raise CkptcheckError(
            f"{path} is not what ckptcheck series --cache wrote", hint="name another file, or remove this one"
        )
    return kept


def write_kept_saves(kept: KeptSaves, path: Path) -> None:
    """Write the file whole or not at all. Raises OutputError."""
    replace_file(path, msgspec.json.encode(kept))
