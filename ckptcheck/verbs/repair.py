"""Plans the safe repairs: a new index from the shards' headers, and a new ignore list. A shard is never changed."""

from __future__ import annotations

import difflib
import json
import os
from pathlib import Path
from typing import Any

import msgspec

from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.checkpoint.header import Shard
from ckptcheck.checkpoint.index import MAX_INDEX, MODEL_INDEX
from ckptcheck.checkpoint.shard_set import ORDINAL
from ckptcheck.checkpoint.source import read_document
from ckptcheck.text.file_io import replace_file
from ckptcheck.text.formatting import count, join_truncated


class Repair(msgspec.Struct, frozen=True):
    """A file to rewrite."""

    path: Path
    done: str
    """What the repair does, in the past tense, for the log."""
    before: bytes | None
    """The present content of the file; None if there is none."""
    after: str
    """The text to write."""

    def diff(self) -> str:
        """Return the change as a unified diff."""
        before = self.before.decode("utf-8", "replace") if self.before is not None else ""
        old = before.splitlines(keepends=True)
        name = self.path.name
        lines = difflib.unified_diff(
            old, self.after.splitlines(keepends=True), f"a/{name}" if old else "/dev/null", f"b/{name}"
        )
        return "".join(line if line.endswith("\n") else line + "\n\\ No newline at end of file\n" for line in lines)

    def apply(self) -> Path | None:
        """Write the file and keep the old one beside it; return the path of the old one, None if there was none.

        The old content is what was read through the source, and a link is replaced and never written through: so nothing is
        copied from, or written to, another place. Raises CkptcheckError.
        """
        backup = None
        if self.before is not None:
            backup = next(name for name in _names(self.path) if not os.path.lexists(name))
            replace_file(backup, self.before)
        replace_file(self.path, self.after.encode())
        return backup


def _names(path: Path) -> Any:
    yield path.with_name(path.name + ".orig")
    number = 1
    while True:
        yield path.with_name(f"{path.name}.orig{number}")
        number += 1


def plan_index_repair(ckpt: Checkpoint) -> tuple[Repair | None, str | None]:
    """Plan the repair of the index: (repair, None), (None, why it is not safe), or (None, None) if none is needed.

    The repair is safe when the shards are conclusive: all are present and readable, no tensor is in two of them, and the
    index names no tensor that all of them lack (a new index would hide that loss).
    """
    folder = ckpt.source.local
    if folder is None or ckpt.is_single_shard or folder.is_file():
        return None, None
    index = ckpt.index
    stale = index is not None and index.readable and not any(name in ckpt.files for name in index.shards)
    usable = index is not None and index.readable and not stale
    numbered = [name for name in ckpt.files if ORDINAL.fullmatch(name)]
    if not usable and not numbered:
        return None, None
    names = index.shards if usable and index is not None else tuple(numbered)
    if (reason := _unsafe(ckpt, names)) is not None:
        return None, reason
    shards = [ckpt.shards[name] for name in names]
    places = {tensor: shard.name for shard in shards for tensor in shard.tensors}
    if usable and index is not None and (lost := index.weight_map.keys() - places.keys()):
        return None, f"the index names {join_truncated(lost)}, which no shard holds; a new index would hide that"
    metadata: dict[str, Any] = dict(index.metadata) if index is not None and index.readable else {}
    wrong = _correct(metadata, shards)
    if usable and index is not None and places == index.weight_map and not wrong:
        return None, None
    file = index.file if index is not None else MODEL_INDEX
    path = folder / file if folder.is_dir() else folder.parent / file
    same = usable and index is not None and places == index.weight_map
    what = "corrected metadata.total_size in" if same else "wrote"
    done = f"{what} {file}" + ("" if same else f" from the headers of {count(len(shards), 'shard')}")
    before, reason = _read_present(ckpt, file)
    if reason is not None:
        return None, reason
    after = (
        json.dumps({"metadata": metadata, "weight_map": dict(sorted(places.items()))}, indent=2, ensure_ascii=False)
        + "\n"
    )
    return Repair(path, done, before, after), None


def _read_present(ckpt: Checkpoint, name: str) -> tuple[bytes | None, str | None]:
    """Return the present content of a file of the folder, or None; and why it cannot be rewritten."""
    file = ckpt.source.files.get(name)
    if file is None:
        if ckpt.source.local is not None and os.path.lexists(ckpt.source.local / name):
            return None, f"{name} is no regular file"
        return None, None
    if file.outside_link is not None:
        return None, f"{name} is a link to {file.outside_link}, and links are not followed"
    if file.size > MAX_INDEX:
        return None, f"{name} has {file.size:,} bytes"
    try:
        return read_document(ckpt.source, name, MAX_INDEX), None
    except OSError as error:
        return None, f"{name} cannot be read: {error.strerror or error}"


def _unsafe(ckpt: Checkpoint, names: tuple[str, ...]) -> str | None:
    """Return why these shards are not conclusive; None if they are."""
    if bad := ckpt.list_broken(names):
        return f"{join_truncated(bad)} {'is' if len(bad) == 1 else 'are'} missing or unreadable"
    families = {(match["stem"], match["total"]) for name in names if (match := ORDINAL.fullmatch(name))}
    if len(families) > 1:
        return "the folder holds more than one set of shards"
    for _, total in families:
        numbers = {int(match["number"]) for name in names if (match := ORDINAL.fullmatch(name))}
        if numbers not in (set(range(1, int(total) + 1)), set(range(int(total)))):
            return f"the folder holds {len(numbers)} of {int(total)} shards"
    tensors: set[str] = set()
    for name in names:
        if duplicates := tensors & ckpt.shards[name].tensors.keys():
            return f"{join_truncated(duplicates)} stands in more than one shard"
        tensors |= ckpt.shards[name].tensors.keys()
    return None


def _correct(metadata: dict[str, Any], shards: list[Shard]) -> bool:
    """Set total_size to the sum of the headers; return whether it was missing or wrong."""
    total = sum(tensor.nbytes for shard in shards for tensor in shard.tensors.values())
    wrong = metadata.get("total_size") != total
    metadata["total_size"] = total
    return wrong


def plan_ignore_repair(ckpt: Checkpoint) -> tuple[Repair | None, str | None]:
    """Plan the repair of a quantization's list of modules left alone, as `plan_index_repair` does for the index.

    It is safe when every chosen consumer then builds each module as it is stored, which is tried before anything is written.
    """
    from ckptcheck.consumers.rewrite_ignore import rewrite_ignore_list

    folder = ckpt.source.local
    quantization = ckpt.quantization
    if (
        folder is None
        or not folder.is_dir()
        or quantization is None
        or quantization.main_declaration is None
        or ckpt.is_partial
    ):
        return None, None
    try:
        rewritten = rewrite_ignore_list(ckpt)
    except ValueError as error:
        return None, str(error)
    if rewritten is None:
        return None, None
    key, entries = rewritten
    path = folder / quantization.main_declaration.file
    before, reason = _read_present(ckpt, path.name)
    if before is None:
        return None, reason
    whole = json.loads(before)
    place = whole
    for part in quantization.main_declaration.key.split(".") if quantization.main_declaration.key else ():
        place = place[part]
    old = place.get(key, [])
    place[key] = entries
    removed = len([entry for entry in old if entry not in entries])
    added = len([entry for entry in entries if entry not in old])
    changes = [
        f"{verb} {count(number, 'pattern')} {where}"
        for verb, number, where in (("removed", removed, "from"), ("added", added, "to"))
        if number
    ]
    done = f"{' and '.join(changes) or 'sorted'} {quantization.main_declaration.key_path(key)} of {path.name}"
    ending = "\n" if before.endswith(b"\n") else ""
    return Repair(path, done, before, json.dumps(whole, indent=2, ensure_ascii=False) + ending), None
