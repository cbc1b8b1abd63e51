"""Reads and writes rollouts as one safetensors file: one tensor for each column, and the metadata as JSON in the header."""

from __future__ import annotations

import errno
import re
from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from ckptcheck.checkpoint.document import Defect, clip
from ckptcheck.checkpoint.header import FIRST_READ, MAX_HEADER, Shard, parse_header
from ckptcheck.errors import CkptcheckError
from ckptcheck.rollouts.columns import COLUMNS, WIDTHS
from ckptcheck.rollouts.json_text import describe_validation_error
from ckptcheck.rollouts.lines import read_lines, write_lines
from ckptcheck.rollouts.metadata import FORMAT, Metadata
from ckptcheck.rollouts.rollouts import Rollouts
from ckptcheck.rollouts.validation import describe_wrong_shape, find_defects
from ckptcheck.text.file_io import open_for_replace, open_regular_stream, path_exists

if TYPE_CHECKING:
    from numpy.typing import NDArray

KEY = "ckptcheck.parity.rollouts"
"""The entry of `__metadata__` that holds the metadata. It is the only entry, because safetensors writes several in any order."""

HARMLESS = frozenset(("misaligned-data",))
"""Defects of a header that only slow readers down."""

MOST_READ = 1 << 28
"""Bytes of the columns of a file up to which they are read into memory. Longer ones are mapped: a file that is cut off while it is
mapped ends the process by a signal."""


def write_rollouts(rollouts: Rollouts, path: Path) -> None:
    """Write rollouts to a file; a path that ends in .jsonl gives JSON lines.

    The file appears whole or not at all, and the same rollouts give the same bytes. Raises CkptcheckError where the file cannot
    be written or the rollouts are malformed.
    """
    from safetensors.numpy import save_file

    if path.suffix == ".jsonl":
        return write_lines(rollouts, path)
    defects = rollouts.defects or tuple(find_defects(rollouts.columns, rollouts.metadata))
    if defects:
        raise CkptcheckError(f"these rollouts cannot be written: {defects[0].key}: {defects[0].text}")
    columns = {name: _as_contiguous(rollouts.columns[name]) for name in COLUMNS if name in rollouts.columns}
    text = msgspec.json.encode(rollouts.metadata.with_format_and_tool, order="deterministic").decode()
    with open_for_replace(path) as temporary:
        save_file(columns, temporary, {KEY: text})


def _as_contiguous(values: NDArray[Any]) -> NDArray[Any]:
    import numpy as np

    return np.ascontiguousarray(values)


def list_rollout_files(paths: Sequence[Path]) -> list[Path]:
    """Return the files, and for a folder its .safetensors and .jsonl files, numbers in names by their value.

    Raises CkptcheckError for a folder without such a file.
    """
    files: list[Path] = []
    for path in paths:
        if not path.is_dir():
            files.append(path)
            continue
        inside = [file for file in path.iterdir() if file.suffix in (".safetensors", ".jsonl") and file.is_file()]
        if not inside:
            raise CkptcheckError(f"{path} holds no .safetensors and no .jsonl file")
        files += sorted(inside, key=lambda file: [(len(part), part) for part in re.split(r"(\d+)", file.name)])
    return files


def read_rollouts(path: Path) -> Rollouts:
    """Read rollouts from a safetensors file, or from JSON lines if the first character is ``{``.

    Columns of more than `MOST_READ` bytes are memory-mapped. `Rollouts.defects` lists what is malformed. Raises CkptcheckError
    where the file cannot be read, or is a pickle.
    """
    try:
        if not path.is_file():
            raise CkptcheckError(f"{path} does not exist" if not path_exists(path) else f"{path} is no file")
        size = path.stat().st_size
        with open_regular_stream(path) as file:
            raw = file.read(min(size, FIRST_READ))
            # safetensors begins with a length of 8 bytes, the last of which are zero
            if raw[:1] == b"{" and 0 not in raw[:8]:
                return read_lines(path)
            length = 8 + int.from_bytes(raw[:8], "little")
            if raw[:4] == b"PK\x03\x04" or (raw[:1] == b"\x80" and length > size):
                hint = f"ckptcheck parity convert {path} -o {path.stem}.safetensors"
                raise CkptcheckError(f"{path} is a pickle, and rollouts are safetensors or JSON lines", hint=hint)
            if FIRST_READ < length <= min(size, MAX_HEADER + 8):
                raw += file.read(length - len(raw))
        return _parse_shard(path, parse_header(path.name, size, raw))
    except OSError as error:
        raise CkptcheckError(f"cannot read {path}: {error.strerror or error}") from error


def _parse_shard(path: Path, shard: Shard) -> Rollouts:
    defects = [defect for defect in shard.defects if defect.kind not in HARMLESS]
    metadata = Metadata()
    if shard.readable:
        metadata, metadata_defects = _parse_metadata((shard.metadata or {}).get(KEY))
        defects += metadata_defects
    columns: dict[str, NDArray[Any]] = {}
    is_mapped = sum(tensor.nbytes for name, tensor in shard.tensors.items() if name in COLUMNS) > MOST_READ
    if not defects:
        for name, tensor in shard.tensors.items():
            if (column := COLUMNS.get(name)) is None:
                continue
            if tensor.dtype not in column.dtypes:
                text = f"its dtype is {clip(tensor.dtype, 20)}, and {' or '.join(column.dtypes)} is expected"
                defects.append(Defect("dtype", text, name))
                continue
            if (reason := describe_wrong_shape(name, tensor.shape)) is not None:
                defects.append(Defect("shape", reason, name))
                continue
            begin = shard.data_start + tensor.data_offsets[0]
            columns[name] = _open_column(path, begin, tensor.dtype, tensor.shape, is_mapped=is_mapped)
    if not defects:
        defects = find_defects(columns, metadata)
    unknown = tuple(sorted(name for name in shard.tensors if name not in COLUMNS))
    return Rollouts(metadata, columns, tuple(defects), path.name, unknown)


def _parse_metadata(text: str | None) -> tuple[Metadata, list[Defect]]:
    if text is None:
        return Metadata(), [Defect("no-metadata", "it holds no rollouts: the header has no such entry", KEY)]
    try:
        file_format = msgspec.json.decode(text, type=dict[str, Any]).get("format")
        if file_format != FORMAT:
            return Metadata(), [
                Defect("format", f"its format is {clip(str(file_format), 40)!r}, and ckptcheck reads {FORMAT}", KEY)
            ]
        return msgspec.json.decode(text, type=Metadata), []
    except msgspec.ValidationError as error:
        reason = describe_validation_error(error)
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        reason = "it is no JSON, or nested too deeply"
    return Metadata(), [Defect("metadata", f"it cannot be read: {clip(reason)}", KEY)]


def _open_column(path: Path, begin: int, dtype: str, shape: tuple[int, ...], *, is_mapped: bool) -> NDArray[Any]:
    import numpy as np

    if 0 in shape:
        return np.zeros(shape, WIDTHS[dtype])
    with open_regular_stream(path) as file:
        try:
            if is_mapped:
                # a plain view, because slicing a memmap takes ten times as long
                return np.memmap(file, WIDTHS[dtype], "r", begin, shape).view(np.ndarray)
            file.seek(begin)
            column = np.fromfile(file, WIDTHS[dtype], prod(shape)).reshape(shape)
        except ValueError as error:  # it asks for bytes that are no longer there
            raise OSError(errno.EIO, "it became shorter while it was read") from error
    column.flags.writeable = False
    return column
