"""Lists the folders of a Megatron run, its iterations and their ranks, on disk or in an object store."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from ckptcheck.checkpoint.source import File, Folder, Source
from ckptcheck.errors import CkptcheckError
from ckptcheck.text.file_io import read_regular_file, real_path

TRACKER = "latest_checkpointed_iteration.txt"
BRIDGE_TRACKER = "latest_train_state.pt"
"""The file that Megatron Bridge writes in place of the tracker, or beside it."""
ITERATION = re.compile(r"iter_\d{7,}")
RANK = re.compile(r"mp_rank_\d{2,}(_\d{3,})?(_\d{3,})?")


class Tree(Protocol):
    """The folders of a target, whose names are paths below it; "" is the target itself. `DiskTree`, `ObjectTree`."""

    target: str
    """The target as the user wrote it."""

    def list_names(self, folder: str) -> list[str]:
        """Return the names of the files directly in a folder. Raises CkptcheckError."""
        ...

    def list_subfolders(self, folder: str) -> list[str]:
        """Return the names of the folders directly in a folder, without links that are not followed. Raises CkptcheckError."""
        ...

    def list_outside_links(self, folder: str) -> dict[str, str]:
        """Map the links in a folder that are not followed to their targets."""
        ...

    def has_file(self, name: str) -> bool:
        """Whether there is such a file, and no link that is not followed."""
        ...

    def read_start(self, name: str, most: int) -> bytes:
        """Return the first bytes of a file. Raises OSError."""
        ...

    def open_folders(self, folders: Iterable[str]) -> Source:
        """Return the files directly in these folders, by their paths below the target. Raises CkptcheckError."""
        ...


class DiskTree:
    """The folders of a target on disk."""

    def __init__(self, path: Path, target: str, *, follow_links: bool = False) -> None:
        """Describe the folders below `path`. follow_links: follow links out of a folder."""
        self.target = target
        self._path, self._follow_links = path, follow_links

    def list_names(self, folder: str) -> list[str]:
        """Return the names of everything directly in a folder that is no folder. Raises CkptcheckError."""
        return [entry.name for entry in self._list(folder) if not _is_folder(entry)]

    def list_subfolders(self, folder: str) -> list[str]:
        """Return the names of the folders directly in a folder, without links that are not followed. Raises CkptcheckError."""
        return [
            entry.name for entry in self._list(folder) if _is_folder(entry) and self._goal(Path(entry.path)) is None
        ]

    def list_outside_links(self, folder: str) -> dict[str, str]:
        """Map the links in a folder that are not followed to their targets; {} if it cannot be listed."""
        try:
            links = [entry for entry in self._list(folder) if entry.is_symlink()]
        except CkptcheckError:
            return {}
        return {entry.name: goal for entry in links if (goal := self._goal(Path(entry.path))) is not None}

    def has_file(self, name: str) -> bool:
        """Whether there is such a file, and no link that is not followed."""
        path = self._path / name
        return path.is_file() and self._goal(path) is None

    def read_start(self, name: str, most: int) -> bytes:
        """Return the first bytes of a file. Raises OSError."""
        return read_regular_file(real_path(self._path / name), most)

    def open_folders(self, folders: Iterable[str]) -> FolderTree:
        """Return the files directly in these folders, by their paths below the target. Raises CkptcheckError."""
        return FolderTree(self._path, self.target, list(folders), follow_links=self._follow_links)

    def _list(self, folder: str) -> list[os.DirEntry[str]]:
        path = self._path / folder
        try:
            return list(os.scandir(path))
        except OSError as error:
            raise CkptcheckError(f"cannot list {path}: {error.strerror or error}") from error

    def _goal(self, entry: Path) -> str | None:
        """Return the target of a link that is not followed, because it leads out of its folder; None for anything else."""
        if not entry.is_symlink() or real_path(entry).is_relative_to(real_path(entry.parent)):
            return None
        return None if self._follow_links and entry.exists() else str(entry.readlink())


def _is_folder(entry: os.DirEntry[str]) -> bool:
    """Whether an entry is a folder or a link to one; False for a link to itself, and for a target without permission."""
    try:
        return entry.is_dir()
    except OSError:
        return False


class FolderTree:
    """A `Source` over several folders: names are paths below the target, with slashes."""

    allows_sampling = True

    def __init__(self, path: Path, target: str, folders: list[str], *, follow_links: bool = False) -> None:
        """List the folders, which are below `path` (the empty name is the target). Raises CkptcheckError if one fails.

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
    """Whether a folder on disk is a Megatron run, one of its iterations, or a folder that torch.distributed.checkpoint wrote."""
    try:
        return (path / "weights" / ".metadata").exists() or are_megatron_names(entry.name for entry in path.iterdir())
    except OSError:
        return False


def is_megatron_tree(tree: Tree) -> bool:
    """Do what `is_megatron_folder` does, for any tree. Raises CkptcheckError."""
    names = [*tree.list_names(""), *tree.list_subfolders("")]
    return are_megatron_names(names) or tree.has_file("weights/.metadata")


def are_megatron_names(names: Iterable[str]) -> bool:
    """Whether names of files and folders show that Megatron or torch.distributed.checkpoint wrote their folder."""
    return any(
        name in (TRACKER, ".metadata", "common.pt")
        or name.endswith(".distcp")
        or RANK.fullmatch(name)
        or ITERATION.fullmatch(name)
        for name in names
    )


def list_iterations(tree: Tree) -> list[str]:
    """Return the names of the iterations in a run's folder, oldest first, ``release`` last; without links that are not followed.

    Raises CkptcheckError if the folder cannot be listed.
    """
    folders = set(tree.list_subfolders(""))
    numbered = sorted((name for name in folders if ITERATION.fullmatch(name)), key=lambda name: int(name[5:]))
    return numbered + (["release"] if "release" in folders else [])


def list_rank_folders(tree: Tree, iteration: str) -> list[str]:
    """Return the names of the mp_rank folders of an iteration, sorted; without links that are not followed."""
    try:
        return sorted(name for name in tree.list_subfolders(iteration) if RANK.fullmatch(name))
    except CkptcheckError:
        return []


def find_outside_links(tree: Tree, folder: str) -> dict[str, str]:
    """Map links that are not followed to their targets: these iterations and ranks stay unread."""
    links = tree.list_outside_links(folder)
    return {name: goal for name, goal in links.items() if ITERATION.fullmatch(name) or RANK.fullmatch(name)}


def read_tracker(tree: Tree) -> tuple[str, str | None]:
    """Return the text of the tracker and the name of its folder, or None for the name if the tracker is not readable."""
    try:
        if not tree.has_file(TRACKER):
            return "", None
        text = tree.read_start(TRACKER, 64).decode("ascii", "replace").strip()
    except OSError:
        return "", None
    return text, f"iter_{int(text):07d}" if text.isascii() and text.isdigit() else text
