"""Lists the folders of a Megatron run: its own, those of iterations, and those of ranks."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from ckptcheck.checkpoint.source import File, Folder
from ckptcheck.errors import CkptcheckError
from ckptcheck.text.file_io import read_regular_file

TRACKER = "latest_checkpointed_iteration.txt"
BRIDGE_TRACKER = "latest_train_state.pt"
"""The file that Megatron Bridge writes in place of the tracker, or beside it."""
ITERATION = re.compile(r"iter_\d{7,}")
RANK = re.compile(r"mp_rank_\d{2,}(_\d{3,})?(_\d{3,})?")


class FolderTree:
    """A `Source` over several folders: names are paths below the target, with slashes."""

    def __init__(self, path: Path, target: str, folders: list[str], *, follow_links: bool = False) -> None:
        """List the folders, which are below `path` (the empty name is the target). Raises CkptcheckError where one fails.

        follow_links: follow links out of a folder, to regular files.
        """
        self.target = target
        self.local: Path | None = path
        self._folders = {prefix: Folder(path / prefix, target, follow_links=follow_links) for prefix in folders}
        self.files: dict[str, File] = {}
        for prefix, folder in self._folders.items():
            for name, file in folder.files.items():
                whole = f"{prefix}/{name}" if prefix else name
                self.files[whole] = replace(file, name=whole)

    def read(self, name: str, start: int, length: int) -> bytes:
        """Read up to `length` bytes; never past a link that leaves the folder. Raises FileNotFoundError, OSError."""
        prefix, _, file = name.rpartition("/")
        return self._folders[prefix].read(file, start, length)


def is_megatron_folder(path: Path) -> bool:
    """Whether a folder is a Megatron run, one of its iterations, or a folder that torch.distributed.checkpoint wrote."""
    try:
        if any((path / name).exists() for name in (TRACKER, ".metadata", "weights/.metadata", "common.pt")):
            return True
        names = [entry.name for entry in path.iterdir()]
    except OSError:
        return False
    return any(name.endswith(".distcp") or RANK.fullmatch(name) or ITERATION.fullmatch(name) for name in names)


def list_iterations(path: Path, *, follow_links: bool = False) -> list[str]:
    """Return the names of the iterations in a run's folder, oldest first, ``release`` last; without links that are not followed."""
    try:
        folders = {
            entry.name for entry in path.iterdir() if entry.is_dir() and _goal(path, entry, follow_links) is None
        }
    except OSError as error:
        raise CkptcheckError(f"cannot list {path}: {error.strerror or error}") from error
    numbered = sorted((name for name in folders if ITERATION.fullmatch(name)), key=lambda name: int(name[5:]))
    return numbered + (["release"] if "release" in folders else [])


def list_rank_folders(path: Path, *, follow_links: bool = False) -> list[str]:
    """Return the names of the mp_rank folders of an iteration, sorted; without links that are not followed."""
    try:
        folders = [entry for entry in path.iterdir() if RANK.fullmatch(entry.name)]
        return sorted(entry.name for entry in folders if entry.is_dir() and _goal(path, entry, follow_links) is None)
    except OSError:
        return []


def find_outside_links(path: Path, *, follow_links: bool = False) -> dict[str, str]:
    """Map the links that are not followed to their targets: iterations and ranks that are not read."""
    try:
        entries = [entry for entry in path.iterdir() if ITERATION.fullmatch(entry.name) or RANK.fullmatch(entry.name)]
        return {entry.name: goal for entry in entries if (goal := _goal(path, entry, follow_links)) is not None}
    except OSError:
        return {}


def _goal(path: Path, entry: Path, follow_links: bool) -> str | None:
    """Return the target of a link that is not followed, since it leads out of the folder; None for anything else."""
    if not entry.is_symlink() or entry.resolve().is_relative_to(path.resolve()) or (follow_links and entry.exists()):
        return None
    return str(entry.readlink())


def read_tracker(path: Path, *, follow_links: bool = False) -> tuple[str, str | None]:
    """Return the text of the tracker and the name of the folder that it means; None for the latter without a readable tracker."""
    tracker = path / TRACKER
    try:
        if not tracker.is_file() or (tracker.is_symlink() and _goal(path, tracker, follow_links) is not None):
            return "", None
        text = read_regular_file(tracker.resolve(), 64).decode("ascii", "replace").strip()
    except OSError:
        return "", None
    return text, f"iter_{int(text):07d}" if text.isascii() and text.isdigit() else text
