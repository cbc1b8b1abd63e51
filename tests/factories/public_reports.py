"""The log of public reports (tests/data/public_reports.toml): builds the checkpoints that show each, and scans them."""

from __future__ import annotations

import re
import tomllib
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import msgspec

import ckptcheck
from ckptcheck.linter.report import Report
from tests.factories.case_table import StrictTable
from tests.factories.checkpoint_cases import CHECKPOINTS, write_checkpoint
from tests.factories.released_structures import Structure, expand, load_structure
from tests.factories.released_structures import write_checkpoint as write_structure
from tests.paths import DATA


class StructureChanges(StrictTable, kw_only=True):
    """What a report did to a released structure, in the order of the fields."""

    drop: list[str] = []
    """Patterns with ``*`` of tensors that are not stored."""
    rename: dict[str, str] = {}
    """Regular expression, searched in each name → what takes its place."""
    put: dict[str, tuple[str, list[int]]] = {}
    """Pattern with ``*`` of stored tensors, or the names of new ones (``{0-79}``) → dtype and shape."""
    config: dict[str, Any] = {}
    """Path in config.json (``a.b``) → new value; "absent" removes it."""
    quantization: dict[str, Any] = {}
    """The same in hf_quant_config.json."""
    files: dict[str, str] = {}
    """File → its new name, "" removes it."""
    ghosts: list[str] = []
    """Names that the index gives to the last shard, which does not have them."""


class PublicReport(StrictTable, kw_only=True):
    """A report, and the checkpoints that show it."""

    url: str
    happened: str
    """What the reporter saw, in a sentence."""
    structure: str = ""
    """A released structure (tests/data/structures), scanned by its headers."""
    base: str = ""
    """In its place: a checkpoint of fixtures/checkpoints, scanned whole; changes are those of rule cases."""
    bad: dict[str, Any]
    good: dict[str, Any] = {}
    """The changes that the sound twin has."""
    lies_on: str = ""
    """The base model of an adapter, a checkpoint of fixtures/checkpoints."""
    says: str
    """A finding of the bad one: code, then words of its message. "" where nothing tells it."""
    why_not: str = ""
    """Why nothing tells it."""


REPORTS = msgspec.convert(
    tomllib.loads((DATA / "public_reports.toml").read_text(encoding="utf-8"))["report"], list[PublicReport]
)


def build(report: PublicReport, changes: dict[str, Any], folder: Path) -> Path:
    if report.base:
        write_checkpoint({"base": report.base, **changes}, folder)
        return folder
    change_structure(load_structure(report.structure), msgspec.convert(changes, StructureChanges), folder)
    return folder


def change_structure(structure: Structure, changes: StructureChanges, folder: Path) -> None:
    entries = dict(structure.entries)
    for pattern in changes.drop:
        matched = [name for name in entries if fnmatchcase(name, pattern)]
        assert matched, pattern
        for name in matched:
            del entries[name]
    for pattern, new in changes.rename.items():
        assert any(re.search(pattern, name) for name in entries), pattern
        entries = {re.sub(pattern, new, name): entry for name, entry in entries.items()}
    for pattern, (dtype, shape) in changes.put.items():
        for name in [name for name in entries if fnmatchcase(name, pattern)] or expand(pattern):
            entries[name] = dtype, tuple(shape)
    write_structure(structure, folder, entries)
    edit_json(folder / "config.json", changes.config)
    edit_json(folder / "hf_quant_config.json", changes.quantization)
    for file, new in changes.files.items():
        for path in sorted(folder.glob(file)):
            path.rename(folder / new) if new else path.unlink()
    index = folder / "model.safetensors.index.json"
    if changes.ghosts:
        table = msgspec.json.decode(index.read_bytes())
        table["weight_map"] |= dict.fromkeys(changes.ghosts, max(table["weight_map"].values()))
        index.write_bytes(msgspec.json.encode(table))


def edit_json(path: Path, edits: dict[str, Any]) -> None:
    if not edits:
        return
    table = msgspec.json.decode(path.read_bytes())
    for dotted, value in edits.items():
        part, keys = table, dotted.split(".")
        for key in keys[:-1]:
            part = part[key]
        if value == "absent":
            del part[keys[-1]]
        else:
            part[keys[-1]] = value
    path.write_bytes(msgspec.json.encode(table))


def scan(report: PublicReport, folder: Path) -> Report:
    base = {"base": CHECKPOINTS / report.lies_on} if report.lies_on else {}
    return ckptcheck.scan(folder, headers_only=bool(report.structure), **base)  # type: ignore[return-value]
