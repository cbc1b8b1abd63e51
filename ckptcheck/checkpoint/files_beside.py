"""Copies the small files beside weights that an engine needs (configs, tokenizer, templates) to the folder of a trial."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ckptcheck.checkpoint.source import File, Folder, read_listed
from ckptcheck.errors import EvidenceError
from ckptcheck.text.file_io import LARGEST_JSON
from ckptcheck.text.formatting import format_bytes

BESIDE = (".json", ".jinja", ".txt", ".model")
"""Suffixes of the files beside the weights."""


def list_files_beside(folder: Path, is_wanted: Callable[[str], bool] = lambda _: True) -> list[File]:
    """Return the files beside the weights of a folder whose names are wanted, in the order of their names.

    As in a scan, a link may leave the folder only to the blobs of a snapshot in the Hugging Face cache. Raises EvidenceError for
    any other link out of it, and for a file that is too long; CkptcheckError if the folder cannot be listed.
    """
    listed = Folder(folder, str(folder)).files
    files = [file for name, file in listed.items() if Path(name).suffix in BESIDE and is_wanted(name)]
    for file in files:
        path = folder / file.name
        if file.outside_link is not None:
            raise EvidenceError(
                f"{path} is a link to {file.outside_link}, and was not followed",
                hint="put the file itself in its place, or remove it",
            )
        if file.size > LARGEST_JSON:
            raise EvidenceError(f"{path} has {format_bytes(file.size)}, which no file beside weights has")
    return files


def copy_files_beside(folder: Path, destination: Path, is_wanted: Callable[[str], bool]) -> None:
    """Copy the files that `list_files_beside` returns. Raises what that raises, and EvidenceError for an unreadable file."""
    for file in list_files_beside(folder, is_wanted):
        try:
            # copy the listed length, even if another process appends to the file
            content = read_listed(file, 0, file.size)
        except OSError as error:
            raise EvidenceError(f"cannot read {folder / file.name}: {error.strerror or error}") from error
        (destination / file.name).write_bytes(content)
