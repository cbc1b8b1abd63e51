"""Reads a folder on the local disks of a Ray cluster's nodes, where each may have other files: asynchronous saves of Megatron.

Every node lists its files once; the folder is the union of the lists. A task reads the files of its own node from the disk; every
other read is a small task on a node that has the file.
"""

from __future__ import annotations

import errno
import os
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ckptcheck.checkpoint.megatron.folders import DiskTree
from ckptcheck.checkpoint.objects.bucket import MAX_OBJECTS, Listing, RequestFailure, StoredObject
from ckptcheck.checkpoint.source import File, read_listed
from ckptcheck.errors import CkptcheckError, EvidenceError
from ckptcheck.runners.ray_cluster import Ray, call_on_node, find_own_node
from ckptcheck.text.formatting import count, join_truncated

DRIVER = ""
"""Name, among the nodes, of the machine that runs the command."""
DEEPEST = 3
"""Deepest level of folders that is listed: a run has iterations, and an iteration has ranks."""


def list_disk(path: str, follow_links: bool) -> dict[str, File]:
    """Return the files in a folder of this machine and below it, by their paths; without links that lead out of it.

    Empty if there is no such folder. Raises OSError if it holds too many files.
    """
    tree, files = DiskTree(Path(path), path, follow_links=follow_links), {}
    waiting = [("", 0)]
    while waiting:
        folder, depth = waiting.pop()
        try:
            files.update(tree.open_folders([folder]).files)
            inner = tree.list_subfolders(folder) if depth < DEEPEST else []
        except CkptcheckError:  # the folder does not exist, or may not be listed
            continue
        if len(files) > MAX_OBJECTS:
            raise OSError(
                errno.EFBIG, f"{path} holds more than {MAX_OBJECTS:,} files; name the folder of one checkpoint"
            )
        waiting += [(f"{folder}/{name}" if folder else name, depth + 1) for name in inner]
    return {name: file for name, file in files.items() if file.outside_link is None}


@dataclass(frozen=True)
class PlacedFile:
    """A file, and where it lies."""

    places: Mapping[str, File]
    """Node → the file as the node listed it. Only the newest, if the files have one size and different times."""
    problem: str = ""
    """Why ckptcheck does not read it."""

    @property
    def size(self) -> int:
        """Bytes of the largest."""
        return max(file.size for file in self.places.values())

    @property
    def time(self) -> str:
        """When it was last changed."""
        return _time_of(next(iter(self.places.values())))


class NodesBucket:
    """A folder that exists on several nodes of a Ray cluster, with other files on each; a `Bucket` keyed by paths below it.

    A task that receives the bucket reads the files of its own node from the disk.
    """

    def __init__(self, files: Mapping[str, PlacedFile]) -> None:
        self._files = dict(files)
        self._own: str | None = DRIVER

    def __getstate__(self) -> dict[str, Any]:
        return {"_files": self._files, "_own": None}

    def list_folder(self, folder: str) -> Listing:
        """List what lies directly in a folder; "" for the whole."""
        inside = f"{folder}/" if folder else ""
        below = [name for name in self._files if name.startswith(inside)]
        folders = {name[len(inside) :].partition("/")[0] for name in below if "/" in name[len(inside) :]}
        here = [name for name in below if "/" not in name[len(inside) :]]
        return Listing(tuple(self._describe(name) for name in sorted(here)), tuple(sorted(folders)))

    def find(self, key: str) -> StoredObject | None:
        """Describe one file, None where no node has it."""
        return self._describe(key) if key in self._files else None

    def read(self, stored: StoredObject, start: int, length: int) -> bytes:
        """Read a range of a file as it was listed. Raises RequestFailure, OSError."""
        placed = self._files[stored.key]
        if placed.problem:
            raise RequestFailure(errno.EIO, placed.problem)
        if self._own is None:
            self._own = find_own_node()
        if (own := placed.places.get(self._own)) is not None:
            return read_listed(own, start, length)
        nodes = [node for node in placed.places if node != DRIVER]
        if not nodes:
            raise RequestFailure(errno.ENOENT, "no node of the Ray cluster has it")
        for node in nodes[:-1]:
            try:
                return call_on_node(node, read_listed, placed.places[node], start, length)
            except OSError:
                continue
        return call_on_node(nodes[-1], read_listed, placed.places[nodes[-1]], start, length)

    view = read

    def write(self, key: str, content: bytes) -> None:
        """Raise RequestFailure: nothing is written there."""
        raise RequestFailure(errno.EROFS, "ckptcheck does not write to the disks of the nodes")

    def find_nodes(self, keys: Iterable[str]) -> frozenset[str]:
        """Return the nodes that have all these files; if none has all, the nodes that have the first file."""
        places = [frozenset(self._files[key].places) - {DRIVER} for key in keys if key in self._files]
        return (frozenset.intersection(*places) or places[0]) if places else frozenset()

    def _describe(self, key: str) -> StoredObject:
        placed = self._files[key]
        return StoredObject(key, placed.size, placed.time)


def find_node_folder(path: Path, runner: Ray, *, follow_links: bool) -> NodesBucket | None:
    """Return the union of the nodes' folders; None if all nodes and this machine see the same files, or no files.

    Adds notes to the runner about where the files lie. Raises EvidenceError if only this machine has the folder.
    """
    where = os.path.abspath(path)
    listed = {DRIVER: list_disk(where, follow_links), **runner.ask_nodes(list_disk, where, follow_links)}
    seen = {
        tuple(sorted((name, file.size, _time_of(file)) for name, file in files.items())) for files in listed.values()
    }
    if len(seen) == 1:
        return None
    if not any(files for node, files in listed.items() if node != DRIVER):
        raise EvidenceError(
            f"no node of the Ray cluster has {where}, only this machine",
            hint="mount it on every node, or scan without --on ray",
        )
    names = {DRIVER: "this machine", **runner.name_nodes()}
    files = place_files(listed, names)
    runner.notes += describe_places(where, files, names)
    return NodesBucket(files)


def place_files(listed: Mapping[str, Mapping[str, File]], names: Mapping[str, str]) -> dict[str, PlacedFile]:
    """Join what each node listed. names: node → its name for people."""
    found: dict[str, dict[str, File]] = {}
    for node, files in listed.items():
        for name, file in files.items():
            found.setdefault(name, {})[node] = file
    return {name: _place_file(found[name], names) for name in sorted(found)}


def _place_file(places: dict[str, File], names: Mapping[str, str]) -> PlacedFile:
    sizes = {file.size: names.get(node, node) for node, file in reversed(places.items())}
    if len(sizes) > 1:
        told = [f"{name} has {size:,} bytes of it" for size, name in sorted(sizes.items(), reverse=True)]
        return PlacedFile(places, f"the nodes have different files of this name: {join_truncated(told)}")
    newest = max(map(_time_of, places.values()), key=int)
    newer = {node: file for node, file in places.items() if _time_of(file) == newest}
    is_only_here = newer.keys() == {DRIVER} and len(places) > 1
    return PlacedFile(newer, "this machine has a newer one than the nodes" if is_only_here else "")


def describe_places(where: str, files: Mapping[str, PlacedFile], names: Mapping[str, str]) -> list[str]:
    """Return sentences about where the files lie, and which ones ckptcheck does not read."""
    numbers = Counter(node for placed in files.values() for node in placed.places if node != DRIVER)
    shares = [f"{names.get(node, node)} has {count(number, 'file')}" for node, number in numbers.items()]
    problems: dict[str, list[str]] = {}
    for name, placed in files.items():
        problem = placed.problem or (
            "" if placed.places.keys() != {DRIVER} else "this machine has it, and no node does"
        )
        if problem:
            problems.setdefault(problem, []).append(name)
    return [
        f"{where} lies on the disks of the nodes: {join_truncated(shares)}",
        *(f"{join_truncated(found)}: {problem}" for problem, found in problems.items()),
    ]


def _time_of(file: File) -> str:
    """Return when a file was last changed, in nanoseconds, without its inode number, which differs on each disk."""
    return file.version.partition(" ")[2]
