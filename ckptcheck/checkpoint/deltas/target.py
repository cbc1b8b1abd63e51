"""Recognizes chains of deltas, and lone deltas, among targets. It imports little, because every scan asks."""

from __future__ import annotations

import os
import re
from pathlib import Path

from ckptcheck.checkpoint.index import MODEL_INDEX
from ckptcheck.checkpoint.source import Source
from ckptcheck.text.addresses import is_remote_address
from ckptcheck.text.file_io import expand_home, read_regular_file, real_path

SIGN = "+"
"""Joins a base and its deltas in a target."""
PEEK = 4096
"""Bytes read from the beginning of an index: every writer puts the marks of a delta there."""
MOST_FOLDERS = 100
"""Most folders in a folder that are searched for deltas: each costs a disk access before the scan begins."""
SPEC = "__delta_spec__"
"""The tensor that marks a flush of verl."""
_MARK = re.compile(rb'"delta_encoding"\s*:')


def split_chain(target: str) -> list[str] | None:
    """Split ``BASE+DELTA+DELTA`` at the signs that join; None for a target that is no chain.

    A sign within the name of an existing file or folder does not join.
    """
    if SIGN not in target or exists(target):
        return None
    pieces = target.split(SIGN)
    if is_remote_address(target) and not any(map(exists, pieces[1:])):
        return None  # a sign within an address
    parts, part = [], pieces[0]
    for piece in pieces[1:]:
        if exists(part) or (is_remote_address(part) and exists(piece)):
            parts.append(part)
            part = piece
        else:
            part += SIGN + piece
    parts.append(part)
    if len(parts) < 2:
        # no part exists: take what precedes the first sign as the base
        parts = [pieces[0], SIGN.join(pieces[1:])]
    return parts


def exists(part: str) -> bool:
    """Whether something on this disk has the name."""
    return bool(part) and os.path.lexists(expand_home(part))


def is_disk_delta(source: Source) -> bool:
    """Whether a folder holds a delta and no checkpoint. Reads the beginning of its index."""
    file = source.files.get(MODEL_INDEX)
    if file is None or file.outside_link is not None:
        return False
    try:
        return _MARK.search(source.read(MODEL_INDEX, 0, PEEK)) is not None
    except OSError:
        return False


def may_be_deltas(target: str) -> bool:
    """Whether a target on disk looks like a delta, or a folder of deltas, by the beginning of one or two files."""
    if is_remote_address(target):
        return False
    path = Path(expand_home(target))
    try:
        if path.is_file():
            return path.suffix == ".safetensors" and SPEC.encode() in _read_beginning(path)
        names = sorted(os.listdir(path))
        if MODEL_INDEX in names:
            return _MARK.search(_read_beginning(path / MODEL_INDEX)) is not None
        tensors = [name for name in names if name.endswith(".safetensors")]
        if tensors:
            return SPEC.encode() in _read_beginning(path / tensors[0])
        indexes = [path / name / MODEL_INDEX for name in names[:MOST_FOLDERS]]
        return any(_MARK.search(_read_beginning(index)) for index in indexes if index.is_file())
    except (OSError, ValueError):  # ValueError: a name with a NUL
        return False


def _read_beginning(path: Path) -> bytes:
    """Return the beginning of a file. Raises OSError, also for a pipe, where a read would wait for ever."""
    return read_regular_file(real_path(path), PEEK)
