"""Rollouts as JSON lines, for people: the metadata first, then a sequence a line. Nothing is lost, not a bit of a float."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec

from ckptcheck.checkpoint.document import Defect, clipped
from ckptcheck.errors import CkptcheckError
from ckptcheck.phrase import count
from ckptcheck.rollouts.columns import COLUMNS, REQUIRED, WIDTHS
from ckptcheck.rollouts.form import defects
from ckptcheck.rollouts.json_text import NotJson, converted, loaded, word
from ckptcheck.rollouts.metadata import FORMAT, Metadata
from ckptcheck.rollouts.rollouts import Rollouts
from ckptcheck.writing import replacing

if TYPE_CHECKING:
    from numpy.typing import NDArray

NAMES = {"<i2": "I16", "<i4": "I32", "<i8": "I64", "<f4": "F32", "<f8": "F64", "|u1": "U8", "|b1": "BOOL"}
ODD = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
"""What JSON has no number for is written as text."""
MOST_HEAD = 16_000_000
"""Bytes of a first line that are looked at to tell what a file is."""


def write_lines(rollouts: Rollouts, path: Path) -> None:
    """Write JSON lines. Raises CkptcheckError when the rollouts are malformed or it cannot be written."""
    found = rollouts.defects or tuple(defects(rollouts.columns, rollouts.metadata))
    if found:
        raise CkptcheckError(f"these rollouts cannot be written: {found[0].key}: {found[0].text}")
    with replacing(path) as temporary, temporary.open("w", encoding="utf-8") as file:
        for line in _lines(rollouts):
            file.write(line + "\n")


def _lines(rollouts: Rollouts) -> Iterator[str]:
    columns = rollouts.columns
    dtypes = {name: NAMES[columns[name].dtype.str] for name in COLUMNS if name in columns}
    yield json.dumps(
        {"rollouts": FORMAT, "columns": dtypes, "metadata": msgspec.to_builtins(rollouts.metadata.stamped)},
        ensure_ascii=False,
    )
    spans = columns.get("version_spans")
    positions = columns.get("full_positions")
    for number in range(rollouts.number):
        where = rollouts.sequence(number)
        parts = []
        for name, column in COLUMNS.items():
            if name not in columns or column.axis == "bounds":
                continue
            if column.axis == "tokens":
                part = columns[name][where]
            elif column.axis == "sequences":
                part = columns[name][number]
            elif column.axis == "spans":
                assert spans is not None
                inside = spans[(spans[:, 0] >= where.start) & (spans[:, 0] < where.stop)]
                part = inside - [where.start, where.start, 0]
            else:
                assert positions is not None
                chosen = (positions >= where.start) & (positions < where.stop)
                part = columns[name][chosen] - (where.start if name == "full_positions" else 0)
            parts.append(f"{json.dumps(name)}: {_json(part)}")
        yield "{" + ", ".join(parts) + "}"


def _json(values: Any) -> str:
    """Write numbers so that each reads back as itself: numpy's shortest digits of a float32 are fewer than of a float64."""
    import numpy as np

    found = np.asarray(values)
    if found.ndim:
        return "[" + ", ".join(_json(each) for each in found) + "]" if found.ndim > 1 else _flat(found)
    return _flat(found[None])[1:-1]


def _flat(values: NDArray[Any]) -> str:
    import numpy as np

    if values.dtype.kind != "f":
        return json.dumps(values.astype(int).tolist())
    words = values.astype(str).tolist()
    if not np.isfinite(values).all():
        words = [f'"{word}"' if word in ODD else word for word in words]
    return "[" + ", ".join(words) + "]"


def read_lines(path: Path) -> Rollouts:
    """Read JSON lines. What is malformed is in `defects`. Raises CkptcheckError where there is no file that can be read."""
    try:
        with path.open("rb") as file:
            return _gathered(file, path.name)
    except OSError as error:
        raise CkptcheckError(f"cannot read {path}: {error.strerror or error}") from error


def begins_lines(path: Path) -> bool:
    """Whether a file's first line is the one that rollouts begin with; False for what cannot be read."""
    try:
        with path.open("rb") as file:
            head = loaded(file.readline(MOST_HEAD))
        return isinstance(head, dict) and "rollouts" in head and "columns" in head
    except (OSError, NotJson):
        return False


class Head(msgspec.Struct):
    """The first line."""

    columns: dict[str, str]
    metadata: Metadata = Metadata()


def _gathered(file: Iterable[bytes], name: str) -> Rollouts:
    import numpy as np

    lines = enumerate(file, 1)
    try:
        head = _head(next(lines, (1, b""))[1])
    except ValueError as error:
        wrong = Defect("metadata", f"it cannot be read: {clipped(str(error))}", "line 1")
        return Rollouts(Metadata(), {}, (wrong,), name)
    row = _form(head.columns)
    parts: dict[str, list[Any]] = {column: [] for column in row.__struct_fields__}
    lengths = [0]
    for number, raw in lines:
        if not raw.strip():
            continue
        try:
            start = lengths[-1]
            for column, values in _row(converted(loaded(raw), row), head.columns, start).items():
                parts[column].append(values)
        except ValueError as error:
            return Rollouts(head.metadata, {}, (Defect("line", clipped(str(error)), f"line {number}"),), name)
        lengths.append(start + len(parts["tokens"][-1]))
    columns: dict[str, NDArray[Any]] = {"starts": np.array(lengths, "<i8")}
    for column, rows in parts.items():
        trailing = tuple(size or 0 for size in COLUMNS[column].trailing)
        rows = rows or [np.zeros((0, *trailing), WIDTHS[head.columns[column]])]
        if len({row.shape[1:] for row in rows if len(row)}) > 1:
            return Rollouts(head.metadata, {}, (Defect("shape", "its rows differ in shape", column),), name)
        columns[column] = np.concatenate([row for row in rows if len(row)] or rows[:1])
    return Rollouts(head.metadata, columns, tuple(defects(columns, head.metadata)), name)


def _head(raw: bytes) -> Head:
    """Read the first line; columns that are not known are left out. Raises ValueError with a sentence."""
    said = loaded(raw)
    if not isinstance(said, dict) or said.get("rollouts") is None:
        raise ValueError(f'the first line is none of rollouts: it has no "rollouts": "{FORMAT}"')
    if said["rollouts"] != FORMAT:
        raise ValueError(f"its format is {clipped(word(said['rollouts']), 40)!r}, and {FORMAT} is read")
    head = converted(said, Head)
    try:
        msgspec.json.encode(head.metadata)
    except UnicodeError as error:
        raise ValueError("a text in it has half a surrogate pair") from error
    head.columns = {column: dtype for column, dtype in head.columns.items() if column in COLUMNS}
    for column, dtype in head.columns.items():
        if dtype not in COLUMNS[column].dtypes:
            raise ValueError(f"the dtype of {column} is {clipped(dtype, 20)}")
    if missing := [column for column in REQUIRED if column not in head.columns]:
        raise ValueError(f"it lists no column {missing[0]}")
    return head


Number = float | None | Literal["nan", "inf", "-inf"]
BITS = {"BOOL": 1, "U8": 8, "I16": 16, "I32": 32, "I64": 54}
"""How large whole numbers may be: of places in a file 2^53 is enough, and can be added to."""


def _form(dtypes: Mapping[str, str]) -> type[msgspec.Struct]:
    """Return what a line has to be: numbers are not taken from text, nor whole ones from others."""
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


def _row(line: msgspec.Struct, dtypes: Mapping[str, str], start: int) -> dict[str, NDArray[Any]]:
    """Return the columns of a line. Raises ValueError with a sentence."""
    import numpy as np

    row: dict[str, NDArray[Any]] = {}
    tokens = len(line.tokens)  # type: ignore[attr-defined]
    for name in line.__struct_fields__:
        column, given = COLUMNS[name], getattr(line, name)
        given = [given] if column.axis == "sequences" else given
        dtype = dtypes[name]
        if not _even(given, len(column.trailing)):
            raise ValueError(f"{name} has rows that differ in length")
        with np.errstate(over="ignore"):
            values = (
                np.array(_plain(given), "<f8").astype(WIDTHS[dtype]) if "F" in dtype else np.array(given, WIDTHS[dtype])
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


def _even(values: Any, deeper: int) -> bool:
    """Whether lists within lists are of one length at every depth."""
    if not deeper:
        return True
    return len({len(each) for each in values}) <= 1 and _even([one for each in values for one in each], deeper - 1)


def _plain(values: Any) -> Any:
    """Turn what is written as text, and null, into floats."""
    if isinstance(values, list):
        return [_plain(each) for each in values]
    return math.nan if values is None else ODD[values] if isinstance(values, str) else values
