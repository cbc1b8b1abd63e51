"""Reads and writes rollouts as JSON lines: the metadata in the first line, then one sequence a line.

The form is for people, and it is exact: every float reads back with the same bits.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec

from ckptcheck.checkpoint.document import Defect, clip
from ckptcheck.errors import CkptcheckError
from ckptcheck.rollouts.columns import COLUMNS, REQUIRED, WIDTHS
from ckptcheck.rollouts.json_text import NotJSON, convert_json, parse_json, read_text_lines, to_printable
from ckptcheck.rollouts.metadata import FORMAT, Metadata
from ckptcheck.rollouts.rollouts import Rollouts
from ckptcheck.rollouts.validation import find_defects
from ckptcheck.text.file_io import open_for_replace, open_regular_stream
from ckptcheck.text.formatting import count

if TYPE_CHECKING:
    from numpy.typing import NDArray

NAMES = {"<i2": "I16", "<i4": "I32", "<i8": "I64", "<f4": "F32", "<f8": "F64", "|u1": "U8", "|b1": "BOOL"}
ODD = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
"""Floats that JSON has no number for are written as these texts."""
MOST_HEAD = 16_000_000
"""Bytes of the first line that are read to recognise the file."""


def write_lines(rollouts: Rollouts, path: Path) -> None:
    """Write JSON lines. Raises CkptcheckError when the rollouts are malformed or it cannot be written."""
    defects = rollouts.defects or tuple(find_defects(rollouts.columns, rollouts.metadata))
    if defects:
        raise CkptcheckError(f"these rollouts cannot be written: {defects[0].key}: {defects[0].text}")
    with open_for_replace(path) as temporary, temporary.open("w", encoding="utf-8") as file:
        for line in _lines(rollouts):
            file.write(line + "\n")


def _lines(rollouts: Rollouts) -> Iterator[str]:
    columns = rollouts.columns
    dtypes = {name: NAMES[columns[name].dtype.str] for name in COLUMNS if name in columns}
    yield json.dumps(
        {
            "rollouts": FORMAT,
            "columns": dtypes,
            "metadata": msgspec.to_builtins(rollouts.metadata.with_format_and_tool),
        },
        ensure_ascii=False,
    )
    spans = columns.get("version_spans")
    positions = columns.get("full_positions")
    for place in range(rollouts.sequence_count):
        token_slice = rollouts.sequence(place)
        parts = []
        for name, column in COLUMNS.items():
            if name not in columns or column.axis == "bounds":
                continue
            if column.axis == "tokens":
                part = columns[name][token_slice]
            elif column.axis == "sequences":
                part = columns[name][place]
            elif column.axis == "spans":
                assert spans is not None
                sequence_spans = spans[(spans[:, 0] >= token_slice.start) & (spans[:, 0] < token_slice.stop)]
                part = sequence_spans - [token_slice.start, token_slice.start, 0]
            else:
                assert positions is not None
                inside_sequence = (positions >= token_slice.start) & (positions < token_slice.stop)
                part = columns[name][inside_sequence] - (token_slice.start if name == "full_positions" else 0)
            parts.append(f"{json.dumps(name)}: {_format_array(part)}")
        yield "{" + ", ".join(parts) + "}"


def _format_array(values: Any) -> str:
    """Return JSON of an array or a number. Each float gets the fewest digits that read back as the same value of its dtype."""
    import numpy as np

    array = np.asarray(values)
    if array.ndim:
        return "[" + ", ".join(_format_array(row) for row in array) + "]" if array.ndim > 1 else _format_row(array)
    return _format_row(array[None])[1:-1]


def _format_row(values: NDArray[Any]) -> str:
    import numpy as np

    if values.dtype.kind != "f":
        return json.dumps(values.astype(int).tolist())
    words = values.astype(str).tolist()
    if not np.isfinite(values).all():
        words = [f'"{word}"' if word in ODD else word for word in words]
    return "[" + ", ".join(words) + "]"


def read_lines(path: Path) -> Rollouts:
    """Read JSON lines; `Rollouts.defects` lists what is malformed. Raises CkptcheckError where the file cannot be read."""
    try:
        with open_regular_stream(path) as file:
            return _parse_lines(read_text_lines(file), path.name)
    except OSError as error:
        raise CkptcheckError(f"cannot read {path}: {error.strerror or error}") from error


def is_rollout_lines(path: Path) -> bool:
    """Whether a file begins with the first line of rollouts; False where it cannot be read."""
    try:
        with open_regular_stream(path) as file:
            header = parse_json(next(read_text_lines(file, MOST_HEAD), b""))
        return isinstance(header, dict) and "rollouts" in header and "columns" in header
    except (OSError, NotJSON):
        return False


class Header(msgspec.Struct):
    """The first line of a file."""

    columns: dict[str, str]
    """Name of a column → its dtype, as safetensors spells it."""
    metadata: Metadata = Metadata()


def _parse_lines(file: Iterable[bytes], name: str) -> Rollouts:
    import numpy as np

    lines = enumerate(file, 1)
    try:
        header, unknown = _parse_header(next(lines, (1, b""))[1])
    except ValueError as error:
        defect = Defect("metadata", f"it cannot be read: {clip(str(error))}", "line 1")
        return Rollouts(Metadata(), {}, (defect,), name)
    row_type = _define_line_type(header.columns)
    parts: dict[str, list[Any]] = {column: [] for column in row_type.__struct_fields__}
    lengths = [0]
    line_number = 2
    try:
        for line_number, raw in lines:
            if raw.strip():
                start = lengths[-1]
                line = convert_json(parse_json(raw), row_type)
                for column, values in _parse_columns(line, header.columns, start).items():
                    parts[column].append(values)
                lengths.append(start + len(parts["tokens"][-1]))
            line_number += 1  # of the line that comes next, whose reading may fail
    except ValueError as error:
        return Rollouts(header.metadata, {}, (Defect("line", clip(str(error)), f"line {line_number}"),), name)
    columns: dict[str, NDArray[Any]] = {"starts": np.array(lengths, "<i8")}
    for column, rows in parts.items():
        trailing = tuple(size or 0 for size in COLUMNS[column].trailing)
        rows = rows or [np.zeros((0, *trailing), WIDTHS[header.columns[column]])]
        if len({row.shape[1:] for row in rows if len(row)}) > 1:
            return Rollouts(header.metadata, {}, (Defect("shape", "its rows differ in shape", column),), name)
        columns[column] = np.concatenate([row for row in rows if len(row)] or rows[:1])
    return Rollouts(header.metadata, columns, tuple(find_defects(columns, header.metadata)), name, unknown)


def _parse_header(raw: bytes) -> tuple[Header, tuple[str, ...]]:
    """Read the first line. Return it without unknown columns, and their names. Raises ValueError whose message is a sentence."""
    content = parse_json(raw)
    if not isinstance(content, dict) or content.get("rollouts") is None:
        raise ValueError(f'the first line is not the header of a rollout file: it has no "rollouts": "{FORMAT}"')
    if content["rollouts"] != FORMAT:
        raise ValueError(f"its format is {clip(to_printable(content['rollouts']), 40)!r}, and ckptcheck reads {FORMAT}")
    header = convert_json(content, Header)
    try:
        msgspec.json.encode(header.metadata)
    except UnicodeError as error:
        raise ValueError("a text in it has half a surrogate pair") from error
    unknown = tuple(sorted(header.columns.keys() - COLUMNS.keys()))
    header.columns = {column: dtype for column, dtype in header.columns.items() if column in COLUMNS}
    for column, dtype in header.columns.items():
        if dtype not in COLUMNS[column].dtypes:
            raise ValueError(f"the dtype of {column} is {clip(dtype, 20)}")
    if missing := [column for column in REQUIRED if column not in header.columns]:
        raise ValueError(f"it lists no column {missing[0]}")
    return header, unknown


Number = float | None | Literal["nan", "inf", "-inf"]
BITS = {"BOOL": 1, "U8": 8, "I16": 16, "I32": 32, "I64": 54}
"""dtype → bits that a whole number may have. 2^53 is enough for places in a file, and a sum of two still fits an int64."""


def _define_line_type(dtypes: Mapping[str, str]) -> type[msgspec.Struct]:
    """Return the type of a sequence's line. It accepts no text as a number, and no float as a whole number."""
    fields: list[tuple[str, Any]] = []
    for name, dtype in dtypes.items():
        column = COLUMNS[name]
        kind: Any = Number
        if "F" not in dtype:
            bits = BITS[dtype]
            least, most = (0, (1 << bits) - 1) if bits < 16 else (-(1 << (bits - 1)), (1 << (bits - 1)) - 1)
            kind = Annotated[int, msgspec.Meta(ge=least, le=most)]
            kind = kind | bool if bits < 16 else kind
        if column.axis == "spans":
            kind = list[tuple[kind, kind, kind]]
        elif column.axis != "sequences":
            for _ in range(1 + len(column.trailing)):
                kind = list[kind]
        if column.axis != "bounds":
            fields.append((name, kind))
    return msgspec.defstruct("Line", fields)


def _parse_columns(line: msgspec.Struct, dtypes: Mapping[str, str], start: int) -> dict[str, NDArray[Any]]:
    """Return a sequence's part of every column. Raises ValueError whose message is a sentence.

    line: of the type that `_define_line_type` returns. start: number of tokens of the sequences before it.
    """
    import numpy as np

    row: dict[str, NDArray[Any]] = {}
    tokens = len(line.tokens)  # type: ignore[attr-defined]
    for name in line.__struct_fields__:
        column, content = COLUMNS[name], getattr(line, name)
        content = [content] if column.axis == "sequences" else content
        dtype = dtypes[name]
        if not _is_rectangular(content, len(column.trailing)):
            raise ValueError(f"{name} has rows that differ in length")
        with np.errstate(over="ignore"):
            values = (
                np.array(_to_floats(content), "<f8").astype(WIDTHS[dtype])
                if "F" in dtype
                else np.array(content, WIDTHS[dtype])
            )
        if not len(values):
            values = values.reshape(0, *(size or 0 for size in column.trailing))
        if column.axis == "tokens" and len(values) != tokens:
            raise ValueError(f"{name} has {count(len(values), 'row')} for {count(tokens, 'token')}")
        if name == "version_spans":
            values = values + np.array([start, start, 0])
        elif name == "full_positions":
            values = values + start
        row[name] = values
    return row


def _is_rectangular(values: Any, deeper: int) -> bool:
    """Whether nested lists have one length at every depth; deeper: the number of depths below this one."""
    if not deeper:
        return True
    return len({len(row) for row in values}) <= 1 and _is_rectangular(
        [item for row in values for item in row], deeper - 1
    )


def _to_floats(values: Any) -> Any:
    """Return a number, or nested lists of numbers, with null and the texts of ODD as floats."""
    if isinstance(values, list):
        return [_to_floats(value) for value in values]
    return math.nan if values is None else ODD[values] if isinstance(values, str) else values
