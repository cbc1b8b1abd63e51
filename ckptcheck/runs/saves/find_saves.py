"""Finds the saves of a run: folders whose names have a step, and the parts of a save that trainers write below them.

A part of each save that has the same path but for the step is one *strand*: ``iter_*`` of Megatron, ``checkpoint-*`` of
transformers, ``global_step_*/actor`` and ``global_step_*/critic`` of verl. Saves are compared within their strand.
"""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from ckptcheck.checkpoint.megatron.folders import ITERATION, RANK, DiskTree, Tree, are_megatron_names
from ckptcheck.checkpoint.objects.address import is_object_address, parse_object_address
from ckptcheck.checkpoint.objects.find import join_folder
from ckptcheck.checkpoint.targets import normalize_target
from ckptcheck.errors import CkptcheckError
from ckptcheck.runs.saves.save_writers import list_save_writers
from ckptcheck.text.file_io import expand_home, path_exists
from ckptcheck.text.formatting import natural_sort_key

STEP = re.compile(
    r"(?<![A-Za-z])(?P<word>iter|iteration|checkpoint|ckpt|global_?step|step|update|rollout|batch|model|save|state|epoch)s?"
    r"[-_=.]?(?P<number>\d{1,15})(?![\d.]*[A-Za-z])",
    re.IGNORECASE,
)
"""A step in the name of a folder: ``iter_0000100``, ``checkpoint-100``, ``global_step_100``, ``global_step100``, ``step=100``."""
BARE = re.compile(r"\d{1,15}")
"""A folder that is called by its step alone."""
NO_ITERATION = re.compile(r"iter_0{7,}")
UNFINISHED = re.compile(r"(^|[._-])(tmp|temp|partial|incomplete|in_?progress)([._-]|$)", re.IGNORECASE)
"""Names that trainers give to a folder while they write it."""
TRACKERS = (
    "latest_checkpointed_iteration.txt",
    "latest_checkpointed_step.txt",
    "latest_checkpoint.txt",
    "latest.txt",
    "latest",
)
"""Files that name the save from which a trainer resumes: Megatron, verl and slime; DeepSpeed."""
TENSORS = (".safetensors", ".safetensors.index.json")
PICKLES = (".pt", ".pth", ".bin")
ONE_FILE = ".ckpt"
"""Ending of a save of Lightning: one file, or a folder where its strategy shards, both called ``epoch=0-step=100.ckpt``."""
DATA_STATE = re.compile(r"data\.pt|train_dataloader\w*\.pt|replay_buffer\.pt|rollouts\.pt")
"""Files beside the folders of a save's parts, which hold no weights: where verl and NeMo-RL stand in their data."""
DEEPEST = 6
"""Levels of folders to search: ``global_step_10/actor/huggingface`` has three, and the user may name a folder above the run."""
MOST_FOLDERS = 20_000
"""Folders to search: a target with more is most likely a whole disk, and each folder is a request to an object store."""
MOST_PARENTS = 3
"""Folders above a target in which to look for the step, if the target is a part of one save: ``global_step_10/actor``."""


@dataclass(frozen=True)
class FoundSave:
    """A folder that holds a part of a save."""

    address: str
    """The folder, or its address in an object store."""
    name: str
    """As a report calls it: the path below the run."""
    strand: str
    """The path below the run with ``*`` in place of the step."""
    number: int
    """The step in the name."""
    word: str
    """What the name calls the step: ``iter``, ``checkpoint``, ``step``, …; "" for a bare number."""


@dataclass
class FoundRun:
    """The saves below the folders that the user named, and what stands beside them."""

    saves: list[FoundSave] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    """Folder → why it is no save of the series."""
    empty_folders: dict[str, int] = field(default_factory=dict)
    """Folder that has the name of a save but no weights → its step."""
    trackers: dict[str, str] = field(default_factory=dict)
    """File → its text, which names the save that a trainer resumes from."""
    listings: dict[str, set[str]] = field(default_factory=dict)
    """Folder of a step → the paths of all files below it."""
    outside: dict[int, set[str]] = field(default_factory=dict)
    """Step → files of it that lie outside of its folder, with ``*`` in place of the step."""


def find_saves(targets: list[str]) -> FoundRun:
    """Find the saves below one or several folders, each a run or a save. Raises CkptcheckError if there is none.

    `left_out` names each folder that holds a checkpoint and whose path has no step.
    """
    found = FoundRun()
    for target in targets:
        _search(normalize_target(target), found)
    found.saves.sort(key=lambda save: (natural_sort_key(save.strand), save.number))
    if not found.saves:
        names = ", ".join(targets)
        raise CkptcheckError(
            f"{names} holds no save whose folder says its step",
            hint="name the folder above iter_0000100, checkpoint-100 or global_step_100; ckptcheck scan checks one checkpoint",
        )
    return found


def open_tree(target: str, *, follow_links: bool = False) -> Tree:
    """Return the folders of a run on disk or in an object store. Raises CkptcheckError."""
    if is_object_address(target):
        from ckptcheck.checkpoint.objects.folder import ObjectTree

        return ObjectTree(target, parse_object_address(target))
    path = Path(expand_home(target))
    if not path.is_dir():
        try:
            what = "is no folder" if path_exists(path) else "does not exist"
        except OSError as error:
            what = f"cannot be opened: {error.strerror}"
        raise CkptcheckError(f"{target} {what}", hint="name the folder of the run")
    return DiskTree(path, target, follow_links=follow_links)


def read_step(parts: list[str]) -> tuple[int, str, int] | None:
    """Return the deepest folder whose name has a step: its position, its word for the step, and the step. None without such a name.

    Below another step, NeMo-RL calls every save of Megatron's ``iter_0000000``.

    >>> read_step(["outputs", "global_step_10", "actor"]), read_step(["run_3", "best"]), read_step(["0000250"])
    ((1, 'global_step', 10), None, (0, '', 250))
    """
    if parts and NO_ITERATION.fullmatch(parts[-1]) and (above := read_step(parts[:-1])) is not None:
        return above
    for place in range(len(parts) - 1, -1, -1):
        if matches := list(STEP.finditer(parts[place].removesuffix(ONE_FILE))):
            best = next((one for one in reversed(matches) if one["word"].lower() != "epoch"), matches[-1])
            return place, best["word"].lower(), int(best["number"])
        if BARE.fullmatch(parts[place]):
            return place, "", int(parts[place])
    return None


def _search(target: str, found: FoundRun) -> None:
    tree, outer = open_tree(target), _list_outer(target)
    steps: dict[str, int] = {}
    waiting, searched = deque([("", 0)]), 0
    while waiting and searched < MOST_FOLDERS:
        folder, depth = waiting.popleft()
        searched += 1
        try:
            names, folders = tree.list_names(folder), tree.list_subfolders(folder)
        except CkptcheckError:
            if not folder:
                raise
            continue
        _read_trackers(tree, folder, names, found)
        _list_files(outer, folder, names, found)
        if folder and not UNFINISHED.search(folder) and (step := read_step([folder.rpartition("/")[2]])) is not None:
            steps[folder] = step[2]
        is_megatron = are_megatron_names([*names, *(name for name in folders if not ITERATION.fullmatch(name))])
        is_megatron = is_megatron and (bool(set(names) - set(TRACKERS)) or any(map(RANK.fullmatch, folders)))
        if is_megatron or any(name.endswith((*TENSORS, *PICKLES)) and not DATA_STATE.fullmatch(name) for name in names):
            _add(target, outer, folder, found)
        for name in names if not is_object_address(target) else ():
            if name.endswith(ONE_FILE) and read_step([name]) is not None:
                _add(target, outer, f"{folder}/{name}" if folder else name, found)
        if depth < DEEPEST:
            deeper = sorted(
                (name for name in folders if not name.startswith(".") and not RANK.fullmatch(name)),
                key=natural_sort_key,
            )
            waiting.extend((f"{folder}/{name}" if folder else name, depth + 1) for name in deeper)
    strands = {save.strand for save in found.saves}
    # Sets, not a loop over the saves: a run can have thousands of saves and as many folders without one.
    like_saves, of_saves = _add_parents(strands), _add_parents(save.name for save in found.saves)
    for folder, number in steps.items():
        if folder not in of_saves and replace_steps(folder.split("/")) in like_saves:
            found.empty_folders[folder] = number


def _list_files(outer: list[str], folder: str, names: list[str], found: FoundRun) -> None:
    """Note the files of a folder for each step whose folder it lies in. outer: the folders above the target, from a step on."""
    inner = folder.split("/") if folder else []
    for parts in (inner, [*outer, *inner]) if outer else (inner,):
        for end, part in enumerate(parts, 1):
            if read_step([part]) is not None:
                listing = found.listings.setdefault("/".join(parts[:end]), set())
                listing.update("/".join((*parts[end:], name)) for name in names)
    for writer in list_save_writers():
        for name in names if writer.outside else ():
            if match := re.fullmatch(rf"(?:.*/)?{writer.outside}", path := f"{folder}/{name}" if folder else name):
                start, end = match.span("step")
                found.outside.setdefault(int(match["step"]), set()).add(f"{path[:start]}*{path[end:]}")


def _add_parents(paths: Iterable[str]) -> set[str]:
    """Return paths with all folders above them.

    >>> sorted(_add_parents(["a/b/c"]))
    ['a', 'a/b', 'a/b/c']
    """
    return {"/".join(parts[:end]) for path in paths for parts in [path.split("/")] for end in range(1, len(parts) + 1)}


def replace_steps(parts: list[str]) -> str:
    """Return a path with ``*`` in place of each step."""
    return "/".join(re.sub(r"\d+", "*", part) if read_step([part]) else part for part in parts)


def _list_outer(target: str) -> list[str]:
    """Return the folders above a target with its own, from the last that has a step on; [] where none of the last few has one."""
    above = str(parse_object_address(target)) if is_object_address(target) else os.path.abspath(expand_home(target))
    parts = above.split("/")[-MOST_PARENTS:]
    step = read_step(parts)
    return parts[step[0] :] if step is not None else []


def _add(target: str, outer: list[str], folder: str, found: FoundRun) -> None:
    inner = folder.split("/") if folder else []
    address = join_folder(target, folder) if is_object_address(target) else os.path.join(target, folder).rstrip("/")
    if (step := read_step(inner)) is not None:
        outer = []
    else:
        step = read_step(outer)
    parts = [*outer, *inner]
    name = "/".join(parts) or os.path.basename(address)
    if step is None:
        found.left_out[name or address] = "its path has no step"
    elif any(UNFINISHED.search(part) for part in parts):
        found.left_out[name] = "its name says that it was not finished"
    else:
        strand = replace_steps(parts)
        found.saves.append(FoundSave(address, name, strand, step[2], step[1]))


def _read_trackers(tree: Tree, folder: str, names: list[str], found: FoundRun) -> None:
    for name in TRACKERS:
        if name not in names:
            continue
        path = f"{folder}/{name}" if folder else name
        try:
            if tree.has_file(path):
                found.trackers[path] = tree.read_start(path, 200).decode("utf-8", "replace").strip()
        except OSError as error:
            found.trackers[path] = f"(cannot be read: {error.strerror or error})"
