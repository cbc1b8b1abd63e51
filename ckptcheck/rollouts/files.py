"""Reads and writes rollouts as one safetensors file: a tensor a column, the metadata as JSON in its header."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from ckptcheck.checkpoint.document import Defect, clipped
from ckptcheck.checkpoint.header import FIRST_READ, MAX_HEADER, Shard, parse_header
from ckptcheck.errors import CkptcheckError
from ckptcheck.rollouts.columns import COLUMNS, WIDTHS
from ckptcheck.rollouts.form import defects
from ckptcheck.rollouts.json_text import reason
from ckptcheck.rollouts.lines import read_lines, write_lines
from ckptcheck.rollouts.metadata import FORMAT, Metadata
from ckptcheck.rollouts.rollouts import Rollouts
from ckptcheck.writing import replacing

if TYPE_CHECKING:
    from numpy.typing import NDArray

KEY = "ckptcheck.rollouts"
"""The entry of `__metadata__` that holds the metadata. It is the only one: safetensors writes several in any order."""

HARMLESS = frozenset(("misaligned-data",))
"""Defects of a header that slow readers down, and no more."""


def write(rollouts: Rollouts, path: Path) -> None:
    """Write a file whole or not at all; the same rollouts give the same bytes. A name that ends in .jsonl gives JSON lines.

    Raises CkptcheckError when it cannot be written or the rollouts are malformed: nothing malformed is written.
    """
    from safetensors.numpy import save_file

    if path.suffix == ".jsonl":
        return write_lines(rollouts, path)
    found = rollouts.defects or tuple(defects(rollouts.columns, rollouts.metadata))
    if found:
        raise CkptcheckError(f"these rollouts cannot be written: {found[0].key}: {found[0].text}")
    columns = {name: _stored(rollouts.columns[name]) for name in COLUMNS if name in rollouts.columns}
    text = msgspec.json.encode(rollouts.metadata.stamped, order="deterministic").decode()
    with replacing(path) as temporary:
        save_file(columns, temporary, {KEY: text})


def _stored(values: NDArray[Any]) -> NDArray[Any]:
    import numpy as np

    return np.ascontiguousarray(values)


def read(path: Path) -> Rollouts:
    """Read rollouts from a file: safetensors, or JSON lines by their first character. What is malformed is in `defects`.

    Columns are mapped, not read. Raises CkptcheckError where there is no file that can be read, or it is a pickle.
    """
    try:
        if not path.is_file():
            raise CkptcheckError(f"{path} does not exist" if not path.exists() else f"{path} is no file")
        size = path.stat().st_size
        with path.open("rb") as file:
            raw = file.read(min(size, FIRST_READ))
            if raw[:1] == b"{" and 0 not in raw[:8]:  # of safetensors these are a length, which ends in zeros
                return read_lines(path)
            length = 8 + int.from_bytes(raw[:8], "little")
            if raw[:4] == b"PK\x03\x04" or (raw[:1] == b"\x80" and length > size):
                hint = f"ckptcheck parity convert {path} -o {path.stem}.safetensors"
                raise CkptcheckError(f"{path} is a pickle, and rollouts are safetensors or JSON lines", hint=hint)
            if FIRST_READ < length <= min(size, MAX_HEADER + 8):
                raw += file.read(length - len(raw))
    except OSError as error:
        raise CkptcheckError(f"cannot read {path}: {error.strerror or error}") from error
    return _described(path, parse_header(path.name, size, raw))


def _described(path: Path, shard: Shard) -> Rollouts:
    found = [defect for defect in shard.defects if defect.kind not in HARMLESS]
    metadata = Metadata()
    if shard.readable:
        metadata, wrong = _metadata((shard.metadata or {}).get(KEY))
        found += wrong
    columns: dict[str, NDArray[Any]] = {}
    if not found:
        for name, tensor in shard.tensors.items():
            if (column := COLUMNS.get(name)) is None:
                continue  # a later version's, or the user's own
            if tensor.dtype not in column.dtypes:
                text = f"its dtype is {clipped(tensor.dtype, 20)}, and {' or '.join(column.dtypes)} is due"
                found.append(Defect("dtype", text, name))
                continue
            columns[name] = _mapped(path, shard.data_start + tensor.data_offsets[0], tensor.dtype, tensor.shape)
    if not found:
        found = defects(columns, metadata)
    return Rollouts(metadata, columns, tuple(found), path.name)


def _metadata(text: str | None) -> tuple[Metadata, list[Defect]]:
    if text is None:
        return Metadata(), [Defect("no-metadata", "it holds no rollouts: the header has no such entry", KEY)]
    try:
        said = msgspec.json.decode(text, type=dict[str, Any]).get("format")
        if said != FORMAT:
            return Metadata(), [
                Defect("format", f"its format is {clipped(str(said), 40)!r}, and {FORMAT} is read", KEY)
            ]
        return msgspec.json.decode(text, type=Metadata), []
    except msgspec.ValidationError as error:
        what = reason(error)
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        what = "it is no JSON, or nested too deeply"
    return Metadata(), [Defect("metadata", f"it cannot be read: {clipped(what)}", KEY)]


def _mapped(path: Path, begin: int, dtype: str, shape: tuple[int, ...]) -> NDArray[Any]:
    import numpy as np

    if 0 in shape:
        return np.zeros(shape, WIDTHS[dtype])
    # a plain view: slices of a memmap cost ten times as much to make
    return np.memmap(os.fspath(path), WIDTHS[dtype], "r", begin, shape).view(np.ndarray)
