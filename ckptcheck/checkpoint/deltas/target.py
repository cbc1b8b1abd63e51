"""Recognizes chains of deltas, and lone deltas, among targets. It imports little, because every scan asks."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from urllib.parse import quote

from ckptcheck.checkpoint.index import MODEL_INDEX
from ckptcheck.checkpoint.source import Source
from ckptcheck.text.addresses import is_remote_address
from ckptcheck.text.file_io import expand_home, read_regular_file, real_path

SIGN = "+"
"""Joins a base and its deltas in a target."""
CHAINS, FULL = "chains", "full"
"""Folders of ModelExpress' cache: files that name chains, and whole checkpoints."""
MAX_CHAIN = 1 << 20
"""Most bytes of a chain file that are read: some ten thousand names."""
PEEK = 4096
"""Bytes read from the beginning of an index: every writer puts the marks of a delta there."""
MOST_FOLDERS = 100
"""Most folders in a folder that are searched for deltas: each costs a disk access before the scan begins."""
SPEC = "__delta_spec__"
"""The tensor that marks a flush of verl."""
_MARK = re.compile(rb'"delta_encoding"\s*:')


def split_chain(target: str) -> list[str] | None:
    """Split ``BASE+DELTA+DELTA`` at the signs that join; None for a target that is no chain.

    A sign within the name of an existing file or folder does not join. A chain file of ModelExpress stands for its base and its
    deltas.
    """
    if target.endswith(".json") and (named := read_chain_file(Path(expand_home(target)))) is not None:
        return named
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


def read_chain_file(path: Path) -> list[str] | None:
    """Return the base and the deltas that a file in ModelExpress' folder ``chains`` names; None for any other file.

    The cache of a model has ``full/VERSION``, ``deltas/VERSION`` and ``chains/VERSION.json`` beside each other, with versions as
    they are quoted in addresses (ai-dynamo/modelexpress modelexpress_rl/inference/checkpoint_store.py, 29d0fb6e).
    """
    if path.parent.name != CHAINS or not path.is_file():
        return None
    try:
        chain = json.loads(read_regular_file(real_path(path), MAX_CHAIN))
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(chain, dict) or not isinstance(chain.get("full_version"), str):
        return None
    deltas = chain.get("deltas")
    if not isinstance(deltas, list) or not all(isinstance(delta, str) for delta in deltas):
        return None
    cache = path.parent.parent
    full = cache / FULL / quote_version(chain["full_version"])
    return [str(full), *(str(cache / "deltas" / quote_version(delta)) for delta in deltas)]


def quote_version(version: str) -> str:
    """Return the name of a version's folder: one part of a path, whatever the version is."""
    return version.replace(".", "%2E") if version in (".", "..") else quote(version, safe="", errors="surrogatepass")


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
