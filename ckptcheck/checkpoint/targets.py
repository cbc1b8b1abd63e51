"""Interprets the targets of one command together: joins the shards of a model, and finds the checkpoints in a folder."""

from __future__ import annotations

import glob
import os
import re
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec

from ckptcheck.checkpoint.hub_address import HUB, normalize_hub_address
from ckptcheck.checkpoint.index import find_index_file
from ckptcheck.checkpoint.megatron.folders import is_megatron_folder
from ckptcheck.checkpoint.objects.address import is_object_address, strip_file_scheme
from ckptcheck.checkpoint.shard_set import find_shard_sets, select_files_without_index
from ckptcheck.errors import CkptcheckError
from ckptcheck.text.addresses import is_remote_address
from ckptcheck.text.file_io import LARGEST_JSON, expand_home, read_regular_file, real_path
from ckptcheck.text.formatting import count

MODEL_FILES = ("config.json", "adapter_config.json")
"""Files that mark their folder as a model."""
MOST_SEARCHED = 2000
"""Folders that are searched for checkpoints to suggest: a user who names a whole disk by mistake still gets an answer soon."""
MOST_SUGGESTED = 3
"""Checkpoints that the message names, so that it fits on one line."""


def resolve_targets(
    targets: Sequence[str], *, recursive: bool = False, follow_links: bool = False, log: Callable[[str], None]
) -> list[str]:
    """Return the targets to scan, one for each report.

    The address of a page on the Hub becomes ``hf://org/name``, several files of one model become their folder, and a pattern in
    an object store (``s3://bucket/runs/*/``) becomes its matches.

    Args:
        targets: what the user named.
        recursive: replace each folder by the checkpoints in it and below; a folder without any stays.
        follow_links: with `recursive`, look into linked folders too.
        log: receives a sentence if several targets become one.

    Raises CkptcheckError for an address of the Hub that is no model's.
    """
    resolved = join_files([one for target in targets for one in expand_pattern(normalize_target(target))], log)
    if recursive:
        return list(dict.fromkeys(found for target in resolved for found in _expand_folder(target, follow_links)))
    return resolved


def normalize_target(target: str) -> str:
    """Return a target in one form: ``hf://org/name`` for the address of a page of the Hub, a path for ``file://``.

    Raises CkptcheckError for an address of the Hub that is no model's, and for a file of another machine.
    """
    return normalize_hub_address(strip_file_scheme(target))


def join_files(targets: Sequence[str], log: Callable[[str], None]) -> list[str]:
    """Replace several files of one model by their folder: scanned alone, each shard would pass although others are missing."""
    named: dict[str, set[str]] = {}
    for target in targets:
        if (place := _split_file(target)) is not None:
            named.setdefault(place[0], set()).add(place[1])
    joined = {folder: files for folder, names in named.items() if (files := _select_model_files(folder, names))}
    result: list[str] = []
    seen: set[str] = set()
    for target in targets:
        place = _split_file(target)
        if place is None:
            place = (target if is_remote_address(target) else os.path.normpath(expand_home(target)), "")
        folder, name = place
        if not name and os.path.dirname(folder) in joined and not _holds_checkpoint(Path(folder)):
            continue  # the shell's pattern also matched a subfolder of the model, such as its chat templates
        if folder not in joined or (name and name not in joined[folder]):
            result.append(target)
        elif folder not in seen:
            seen.add(folder)
            result.append(folder)
    for folder, files in joined.items():
        log(f"{folder}: the {count(len(files), 'file')} that you named there are one model, and are scanned as one")
    return result


def find_checkpoints(
    folder: Path, most: int | None = None, *, follow_links: bool = False, unlisted: list[Path] | None = None
) -> Iterator[Path]:
    """Yield the folders that hold a checkpoint, from this one downwards, in natural order.

    Skips hidden folders and the inside of a Megatron run. most: folders to look into; None: all. follow_links: look into linked
    folders too, each folder once. unlisted: gets the folders that the system does not list.
    """
    waiting, searched, known = deque([folder]), 0, {real_path(folder)}
    while waiting and (most is None or searched < most):
        path, searched = waiting.popleft(), searched + 1
        try:
            entries = list(os.scandir(path))
        except OSError:
            if unlisted is not None:
                unlisted.append(path)
            continue
        if any(entry.name.endswith((".safetensors", ".safetensors.index.json")) for entry in entries):
            yield path
        elif is_megatron_folder(path) and not any(path.glob("iter_*/*.safetensors")):
            # iterations that were converted to Hugging Face's format are checkpoints of their own
            yield path
            continue
        names = [entry.name for entry in entries if not entry.name.startswith(".") and _is_folder(entry, follow_links)]
        # visit a folder before the links to it, so that runs/latest does not replace runs/step_9
        names.sort(key=lambda name: ((path / name).is_symlink(), natural_order(name)))
        for name in names:
            if not follow_links or (real := real_path(path / name)) not in known:
                waiting.append(path / name)
                known |= {real} if follow_links else set()


def suggest_checkpoints(target: str, folder: Path) -> CkptcheckError | None:
    """Return an error that names the checkpoints below a folder that is no checkpoint; None if there are none below."""
    found = [str(path.relative_to(folder)) for path in find_checkpoints(folder, MOST_SEARCHED) if path != folder]
    return describe_found(target, found)


def describe_found(target: str, found: list[str]) -> CkptcheckError | None:
    """Return an error that names the checkpoints found below a target; None if `found` is empty."""
    if not found:
        return None
    found.sort(key=natural_order)
    rest = f" and {len(found) - MOST_SUGGESTED} more" if len(found) > MOST_SUGGESTED else ""
    is_one = len(found) == 1
    return CkptcheckError(
        f"{target} is no checkpoint itself, but holds {count(len(found), 'checkpoint')}: {', '.join(found[:MOST_SUGGESTED])}{rest}",
        hint=f"name {os.path.join(target, found[-1])}"
        + ("" if is_one else f", or scan all: ckptcheck scan --recursive {target}"),
    )


def _expand_folder(target: str, follow_links: bool) -> list[str]:
    if is_object_address(target):
        from ckptcheck.checkpoint.objects.find import find_object_checkpoints

        return sorted(find_object_checkpoints(target), key=natural_order) or [target]
    folder = Path(expand_home(target))
    if target.startswith(HUB) or not folder.is_dir():
        return [target]
    # what cannot be listed is a target too: it may hold checkpoints, and its report says why it is not read
    unlisted: list[Path] = []
    found = [*find_checkpoints(folder, follow_links=follow_links, unlisted=unlisted), *unlisted]
    found.sort(key=lambda path: natural_order(str(path)))
    return [os.path.normpath(os.path.join(target, path.relative_to(folder))) for path in found] or [target]


def expand_pattern(target: str) -> list[str]:
    """Return the matches of a pattern: folders in an object store, or paths on this disk if quotes kept it from the shell.

    Returns [target] if it is no pattern. Raises CkptcheckError if nothing matches.
    """
    if is_object_address(target) and re.search(r"[*?]", target):
        from ckptcheck.checkpoint.objects.find import match_folders

        found, what = sorted(match_folders(target), key=natural_order), "folder"
    elif is_path_pattern(target):
        found, what = sorted(glob.glob(expand_home(target)), key=natural_order), "file or folder"
    else:
        return [target]
    if not found:
        raise CkptcheckError(f"{target} matches no {what}", hint="name one, or the folder above it with --recursive")
    return found


def is_path_pattern(target: str) -> bool:
    """Return whether a target is a pattern of paths on this disk, and not the name of an existing file."""
    return (
        not is_remote_address(target)
        and re.search(r"[*?[]", target) is not None
        and not os.path.lexists(expand_home(target))
    )


def _split_file(target: str) -> tuple[str, str] | None:
    """Split the path of a file into folder and name; None for a folder, and for a path that does not exist."""
    path = expand_home(target)
    if is_remote_address(target) or target.endswith(("/", os.sep)) or os.path.isdir(path):
        return None
    folder, name = os.path.split(path)
    return (os.path.normpath(folder or "."), name) if os.path.isdir(folder or ".") else None


def _select_model_files(folder: str, named: set[str]) -> set[str]:
    """Return the named files of a folder that belong to one model; the empty set if nothing shows that they do."""
    tensors = sorted(name for name in named if name.endswith(".safetensors"))
    beside = set(os.listdir(folder)) | named
    has_config = any(name in MODEL_FILES or name.endswith(".safetensors.index.json") for name in named)
    shards: set[str] = set()
    if (index := find_index_file(beside)) is not None:
        shards |= _read_index_files(Path(folder, index)) & named
    for shard_set in find_shard_sets(tensors):
        if len(shard_set.files) > 1 or has_config:
            shards |= set(shard_set.files.values())
    if not shards and tensors and (has_config or ("config.json" in beside and "model.safetensors" not in tensors)):
        shards = set(select_files_without_index(tensors, is_adapter="adapter_config.json" in beside))
    if len(shards) < 2 and not (shards and has_config):
        return set()
    return shards | {name for name in named if not name.endswith(".safetensors")}


def _read_index_files(path: Path) -> set[str]:
    """Return the names of the shards in an index; the empty set if it cannot be read, which the scan reports."""
    try:
        document = msgspec.json.decode(read_regular_file(real_path(path), LARGEST_JSON), type=dict[str, msgspec.Raw])
        return set(msgspec.json.decode(document["weight_map"], type=dict[str, str]).values())
    except (OSError, KeyError, UnicodeDecodeError, RecursionError, msgspec.MsgspecError):
        return set()


def _holds_checkpoint(folder: Path) -> bool:
    return not folder.is_dir() or next(find_checkpoints(folder), None) is not None


def _is_folder(entry: os.DirEntry[str], follow_links: bool) -> bool:
    try:
        return entry.is_dir(follow_symlinks=follow_links)
    except OSError:
        return False


def natural_order(name: str) -> list[tuple[int, int, str]]:
    """Return a key that sorts checkpoint-1000 after checkpoint-200.

    >>> sorted(["checkpoint-1000", "checkpoint-200", "final"], key=natural_order)
    ['checkpoint-200', 'checkpoint-1000', 'final']
    """
    return [(0, int(part), "") if part.isdecimal() else (1, 0, part) for part in re.split(r"(\d+)", name) if part]
