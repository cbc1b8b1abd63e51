"""Finds checkpoints in an object store: below a folder, or in the folders that a pattern matches."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from fnmatch import fnmatchcase

from ckptcheck.checkpoint.megatron.folders import ITERATION, are_megatron_names
from ckptcheck.checkpoint.objects.address import ObjectAddress, parse_object_address
from ckptcheck.checkpoint.objects.folder import ObjectTree
from ckptcheck.errors import EvidenceError
from ckptcheck.text.formatting import natural_sort_key

TENSORS = (".safetensors", ".safetensors.index.json")
"""Suffixes of files that mark a folder as a Hugging Face checkpoint."""
DEEPEST, MOST_FOLDERS = 64, 20_000
"""Limits of the search, because a broken store can list a further folder in every folder: levels, and folders in all."""


def find_object_checkpoints(target: str) -> Iterator[str]:
    """Yield the addresses of the checkpoints in a folder of a bucket and below it. Raises CkptcheckError, EvidenceError."""
    for folder in find_folders(ObjectTree(target, parse_object_address(target))):
        yield join_folder(target, folder)


def find_folders(tree: ObjectTree, most: int | None = None) -> Iterator[str]:
    """Yield the folders of a tree that hold checkpoints, "" for its top. Does not descend into Megatron runs.

    most: folders to look into; None: all. Raises EvidenceError if there are too many, CkptcheckError.
    """
    waiting, searched = deque([""]), 0
    while waiting and (most is None or searched < most):
        folder, searched = waiting.popleft(), searched + 1
        _require_few(tree.target, searched, folder)
        names, folders = tree.list_names(folder), tree.list_subfolders(folder)
        is_model = any(name.endswith(TENSORS) for name in names)
        if is_model or (are_megatron_names([*names, *folders]) and not _holds_converted(tree, folder, folders)):
            yield folder
        if is_model or not are_megatron_names([*names, *folders]) or _holds_converted(tree, folder, folders):
            visible = sorted((name for name in folders if not name.startswith(".")), key=natural_sort_key)
            waiting.extend(f"{folder}/{name}" if folder else name for name in visible)


def _holds_converted(tree: ObjectTree, folder: str, folders: list[str]) -> bool:
    """Whether iterations of a run were converted to Hugging Face's format: these are checkpoints of their own."""
    inside = f"{folder}/" if folder else ""
    return any(
        name.endswith(".safetensors")
        for iteration in folders
        if ITERATION.fullmatch(iteration)
        for name in tree.list_names(inside + iteration)
    )


def match_folders(pattern: str) -> Iterator[str]:
    """Yield the folders that a pattern with ``*`` and ``?`` matches, level by level.

    Raises EvidenceError where there are too many, CkptcheckError.
    """
    address = parse_object_address(pattern)
    found = [""]
    tree = ObjectTree(pattern, ObjectAddress(address.scheme, address.bucket, ""))
    for word in address.key.split("/"):
        if "*" in word or "?" in word:
            deeper = [(at, name) for at in found for name in tree.list_subfolders(at) if fnmatchcase(name, word)]
        else:
            deeper = [(at, word) for at in found]
        found = [f"{at}/{name}" if at else name for at, name in deeper]
        _require_few(pattern, len(found))
    for folder in found:
        here = tree.list_folder(folder)
        if here.objects or here.folders:
            yield f"{address.root}/{folder}"


def _require_few(target: str, number: int, folder: str = "") -> None:
    """Raise EvidenceError if there are more folders to list than a store of checkpoints has."""
    if number > MOST_FOLDERS or folder.count("/") >= DEEPEST:
        limit = f"{DEEPEST} levels of folders" if number <= MOST_FOLDERS else f"{MOST_FOLDERS:,} folders"
        raise EvidenceError(f"{target} has more than {limit}", hint="name a folder further in")


def join_folder(target: str, folder: str) -> str:
    """Return the address of a folder below a target."""
    return target.rstrip("/") + (f"/{folder}" if folder else "")
