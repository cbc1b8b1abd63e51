"""The files of a Megatron run: its own folder, the iteration's, and those of its ranks."""

from __future__ import annotations

import re
from pathlib import Path

from ckptcheck.checkpoint.source import File, Folder
from ckptcheck.errors import CkptcheckError

TRACKER = "latest_checkpointed_iteration.txt"
BRIDGE_TRACKER = "latest_train_state.pt"
"""What Megatron Bridge writes in its place, and beside it."""
ITERATION = re.compile(r"iter_\d{7,}")
RANK = re.compile(r"mp_rank_\d{2,}(_\d{3,})?(_\d{3,})?")


class Tree:
    """A `Source` over several folders: names are paths below the target, with slashes."""

    def __init__(self, path: Path, target: str, folders: list[str]) -> None:
        """`folders`: below `path`; the empty name is the target itself. Raises CkptcheckError where one cannot be listed."""
        self.target = target
        self.local: Path | None = path
        self._folders = {prefix: Folder(path / prefix, target) for prefix in folders}
        self.files: dict[str, File] = {}
        for prefix, folder in self._folders.items():
            for name, file in folder.files.items():
                whole = f"{prefix}/{name}" if prefix else name
                self.files[whole] = File(whole, file.size, file.leaves)

    def read(self, name: str, start: int, length: int) -> bytes:
        """Read up to `length` bytes; never past a link that leaves the folder. Raises FileNotFoundError, OSError."""
        prefix, _, file = name.rpartition("/")
        return self._folders[prefix].read(file, start, length)


def is_run(path: Path) -> bool:
    """Whether a folder is a Megatron run, one of its iterations, or what torch.distributed.checkpoint writes."""
    try:
        if any((path / name).exists() for name in (TRACKER, ".metadata", "weights/.metadata", "common.pt")):
            return True
        names = [entry.name for entry in path.iterdir()]
    except OSError:
        return False
    return any(name.endswith(".distcp") or RANK.fullmatch(name) or ITERATION.fullmatch(name) for name in names)


def iterations(path: Path) -> list[str]:
    """Return the iterations in a run's folder by name, oldest first; ``release`` stands last. Links that leave it are not."""
    try:
        folders = {entry.name for entry in path.iterdir() if entry.is_dir() and _goal(path, entry) is None}
    except OSError as error:
        raise CkptcheckError(f"cannot list {path}: {error.strerror or error}") from error
    numbered = sorted((name for name in folders if ITERATION.fullmatch(name)), key=lambda name: int(name[5:]))
    return numbered + (["release"] if "release" in folders else [])


def rank_folders(path: Path) -> list[str]:
    """Return the mp_rank folders of an iteration, by name; links that leave it are none."""
    try:
        found = [entry for entry in path.iterdir() if RANK.fullmatch(entry.name)]
        return sorted(entry.name for entry in found if entry.is_dir() and _goal(path, entry) is None)
    except OSError:
        return []


def leaving_folders(path: Path) -> dict[str, str]:
    """Return the links to folders that lead out of a run, and where: an iteration or a rank that is not looked into."""
    try:
        found = [entry for entry in path.iterdir() if ITERATION.fullmatch(entry.name) or RANK.fullmatch(entry.name)]
        return {entry.name: goal for entry in found if (goal := _goal(path, entry)) is not None}
    except OSError:
        return {}


def _goal(path: Path, entry: Path) -> str | None:
    """Where a link leads that leaves the folder, None for anything else."""
    if not entry.is_symlink() or entry.resolve().is_relative_to(path.resolve()):
        return None
    return str(entry.readlink())


def tracked(path: Path) -> tuple[str, str | None]:
    """Return what the tracker says, and the folder that it names so; that is None without a tracker that can be read."""
    tracker = path / TRACKER
    try:
        if not tracker.is_file() or (tracker.is_symlink() and not tracker.resolve().is_relative_to(path.resolve())):
            return "", None
        with tracker.open("rb") as file:
            text = file.read(64).decode("ascii", "replace").strip()
    except OSError:
        return "", None
    return text, f"iter_{int(text):07d}" if text.isascii() and text.isdigit() else text
