"""Lists and reads the files of a Megatron checkpoint: the run's own files, and the files of the checked iteration."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, Final, Literal, TypeVar

from ckptcheck.checkpoint.document import Defect
from ckptcheck.checkpoint.file_reader import FileReader
from ckptcheck.checkpoint.megatron.folders import (
    TRACKER,
    Tree,
    find_outside_links,
    list_iterations,
    list_rank_folders,
    read_tracker,
)
from ckptcheck.checkpoint.megatron.stubs import load_persistent, stub_for
from ckptcheck.checkpoint.source import Source, read_document
from ckptcheck.checkpoint.torch_archive import UnreadableArchive, open_archive
from ckptcheck.checkpoint.unpickle import MAX_PICKLE

T = TypeVar("T")
Form = Literal["torch_dist", "legacy", "empty"]


class MegatronFiles:
    """The files of a Megatron checkpoint; each is read on first use.

    iteration: the checked folder below the target (``iter_0000100``); empty if the target is that folder itself.
    A missing part is None; a malformed part has defects; an unreadable part is in `unread`.
    """

    def __init__(self, tree: Tree, *, jobs: int | None = None) -> None:
        self.jobs: Final = jobs or os.cpu_count() or 1
        self.iterations = tuple(list_iterations(tree))
        self.is_run = bool(self.iterations) or TRACKER in tree.list_names("")
        self._tracker_text, self.tracker = read_tracker(tree)
        self.iteration = self._choose_iteration(tree)
        inside = f"{self.iteration}/" if self.iteration else ""
        ranks = [f"{inside}{name}" for name in list_rank_folders(tree, self.iteration)]
        self.rank_folders = tuple(ranks)
        self.outside_links = find_outside_links(tree, "")
        if inside:
            inner = find_outside_links(tree, self.iteration)
            self.outside_links |= {f"{inside}{name}": goal for name, goal in inner.items()}
        folders = [""] + ([self.iteration] if self.iteration else []) + ranks
        self.source: Source = tree.open_folders(folders)
        self._parts = FileReader(self.source)

    def _choose_iteration(self, tree: Tree) -> str:
        """Return the iteration that a trainer would load: the tracker's, else the newest."""
        if self.tracker in self.iterations:
            assert self.tracker is not None
            return self.tracker
        if self.iterations and self.tracker is None:
            return self.iterations[-1]
        # NeMo's name for the folder.
        return "weights" if "weights" in tree.list_subfolders("") and tree.has_file("weights/.metadata") else ""

    @property
    def target(self) -> str:
        """The target as the user wrote it."""
        return self.source.target

    @property
    def files(self) -> Mapping[str, Any]:
        """The files of the run's folder, the iteration and its ranks, by path below the target."""
        return self.source.files

    def file(self, name: str) -> str:
        """Return the path, below the target, of a file of the iteration."""
        return f"{self.iteration}/{name}" if self.iteration else name

    @property
    def finding_file(self) -> str | None:
        """The `file` of a finding about the whole iteration."""
        return self.iteration or None

    @cached_property
    def form(self) -> Form:
        """How the iteration is stored: torch_dist (also plain torch.distributed.checkpoint), legacy, or not at all."""
        if self.rank_folders:
            return "legacy"
        inside = [name for name in self.files if name.rpartition("/")[0] == self.iteration]
        marks = (".metadata", ".distcp", "common.pt", "metadata.json")
        return "torch_dist" if any(name.endswith(marks) for name in inside) else "empty"

    def _read(self, name: str, reader: Callable[[bytes], T], *, is_text: bool = False) -> T | None:
        """Read a small file whole; None if it does not exist or is a link out of the target."""
        if name not in self.files:
            return None

        def read(source: Source, name: str) -> T:
            return reader(read_document(source, name, MAX_PICKLE + 1, is_text=is_text))

        return self._parts.read(name, read)

    @cached_property
    def _damaged(self) -> dict[str, Defect]:
        return {}

    @cached_property
    def _read_files(self) -> dict[str, tuple[Any, tuple[str, ...]] | None]:
        return {}

    def _torch_file(self, name: str) -> tuple[Any, tuple[str, ...]] | None:
        """Return the object in a torch.save file and the foreign globals it names; None if it is unreadable or missing."""
        if name not in self.files or self.files[name].outside_link is not None:
            return None
        if name not in self._read_files:
            self._read_files[name] = None
            try:
                archive = open_archive(
                    lambda start, length: self.source.read(name, start, length), self.files[name].size
                )
                self._read_files[name] = archive.describe(stub_for, load_persistent)
            except UnreadableArchive as error:
                self._damaged[name] = Defect("unreadable", f"this is not a readable torch.save file: {error}")
            except OSError as error:
                self._parts.unread[name] = error.strerror or str(error)
        return self._read_files[name]
