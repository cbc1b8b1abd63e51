"""Keeps the measurements of a matrix, so that an interrupted run can continue: JSON lines, one for each measurement."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec

from ckptcheck.errors import CkptcheckError
from ckptcheck.live.experiments.matrix.cells import Cell
from ckptcheck.rollouts.gap_summary import GapSummary
from ckptcheck.text.file_io import open_regular_file_to_append, read_whole_file

LARGEST = 1 << 26
"""Bytes of the largest log that is read; a measurement has less than 1 kB."""
FORMAT = "ckptcheck-parity-matrix/1"


class MeasurementLog:
    """The measurements of one matrix.

    path: a file whose measurements are read, if it exists, and to which new ones are appended; None keeps them in memory only.
    about: facts that must be the same for measurements to belong to one matrix. An incomplete last line, as a killed process
    leaves it, is dropped. Raises CkptcheckError for a file of another matrix.
    """

    def __init__(self, path: Path | None, about: Mapping[str, Any]) -> None:
        self.measurements: dict[Cell, GapSummary] = {}
        self._path = path
        self._versions: list[str] | None = None
        head = {"format": FORMAT, **json.loads(json.dumps(about))}
        if path is None:
            return
        if path.is_symlink():
            raise CkptcheckError(
                f"{path} is a link, and measurements are not written through one", "name the file itself"
            )
        if path.exists():
            self._read(path, head)
        else:
            self._write(head)

    def check_versions(self, versions: Sequence[str]) -> None:
        """Record the versions of engines and trainers. Raises CkptcheckError where the file was measured with others."""
        if self._versions not in (None, list(versions)):
            raise CkptcheckError(
                f"{self._path} was measured with {', '.join(self._versions or ())}, and this is {', '.join(versions)}",
                hint="give another file",
            )
        if self._versions is None and self._path is not None:
            self._write({"versions": list(versions)})

    def add(self, cell: Cell, gap: GapSummary) -> None:
        """Add a measurement; it is on the disk when this returns."""
        self.measurements[cell] = gap
        if self._path is not None:
            self._write({"cell": asdict(cell), "gap": gap.as_dict()})

    def _read(self, path: Path, head: Mapping[str, Any]) -> None:
        try:
            raw = read_whole_file(path, LARGEST)
        except OSError as error:
            raise CkptcheckError(f"cannot read {path}: {error.strerror or error}") from error
        complete = raw[: raw.rfind(b"\n") + 1]
        lines = [_parse_line(line) for line in complete.splitlines()]
        if not lines or lines[0].get("format") != FORMAT:
            raise CkptcheckError(f"{path} is no record of a matrix, and will not be overwritten")
        if differing := [key for key in {*head, *lines[0]} if head.get(key) != lines[0].get(key)]:
            raise CkptcheckError(
                f"{path} is of another matrix: it has another {', '.join(sorted(differing))}",
                hint="give another file, or the same options",
            )
        for line in lines[1:]:
            try:
                if "versions" in line:
                    self._versions = msgspec.convert(line["versions"], list[str])
                else:
                    self.measurements[msgspec.convert(line["cell"], Cell)] = msgspec.convert(line["gap"], GapSummary)
            except (KeyError, msgspec.ValidationError):
                # an unreadable measurement is repeated
                continue
        if len(complete) != len(raw):
            self._cut_off(len(complete))

    def _cut_off(self, length: int) -> None:
        assert self._path is not None
        try:
            file = open_regular_file_to_append(self._path)
            try:
                os.ftruncate(file, length)
            finally:
                os.close(file)
        except OSError as error:
            raise CkptcheckError(f"cannot write {self._path}: {error.strerror or error}") from error

    def _write(self, line: Mapping[str, Any]) -> None:
        assert self._path is not None
        try:
            with os.fdopen(open_regular_file_to_append(self._path), "a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise CkptcheckError(f"cannot write {self._path}: {error.strerror or error}") from error


def _parse_line(line: bytes) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
