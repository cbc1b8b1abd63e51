"""The cases of the rules: a tiny checkpoint, the changes made to it, and what the rule must report then.

A case is a table of a rule's .toml; `CheckpointCase` lists its keys. Changes are made in the order of the fields of
`CheckpointChanges`. Cases about other evidence have the keys that the class in their own factory lists.
"""

from __future__ import annotations

import json
import shutil
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
from safetensors.numpy import save_file

from ckptcheck.linter import rule_loader
from ckptcheck.linter.rule import Finding, Rule
from ckptcheck.values.dtypes import decode
from tests.factories import megatron_cases
from tests.factories.case_table import CaseTable, StrictTable
from tests.paths import ROOT

CHECKPOINTS = ROOT / "fixtures" / "checkpoints"
MEGATRON = ROOT / "fixtures" / "megatron"


class AddedTensor(StrictTable, kw_only=True):
    """A tensor to add or to replace; it is filled with ones."""

    dtype: str
    shape: list[int]


class DrawnTensor(StrictTable, kw_only=True):
    """Tensors of random F32 numbers."""

    how: Literal["normal", "uniform", "trained", "positive", "signs", "codes", "integers", "bytes"]
    """trained: rows and columns have different norms; positive: magnitudes of normal numbers; signs: these alone, times 0.02;
    codes: finite numbers of E4M3, each as often; integers: from -7 to 7; bytes: from 0 to 255."""
    shape: list[int]
    number: int = 1
    """How many: ``*`` in the name of the tensor stands for 0 to number - 1."""
    stream: int | None = None
    """The axis with the channels of the residual stream: along it all such tensors have the same norms."""
    scale: float = 1.0
    """By what the numbers are multiplied."""
    shift: float = 0.0
    """What is added to all numbers."""
    zeros: float = 0.0
    """Share of the numbers, chosen at random, that are set to zero."""
    fresh: tuple[int, int, int] | None = None
    """Axis, begin and end of a part of trained ones that is drawn anew."""


class WordRows(StrictTable, kw_only=True):
    """A table of rows for the tokens of `write_words`, 120 words in four forms each: trained and at their tokens' places."""

    words: int = 120
    by: int = 0
    """How many rows later the rows lie."""
    begin: int = 0
    """The first row of those that `by` or `how` changes."""
    end: int | None = None
    """The row after the last that `how` fills."""
    how: Literal["", "shuffled", "drawn", "filled"] = ""
    """shuffled: in random order; drawn: from an initialiser; filled: with the first of them."""


class ValueChange(StrictTable, kw_only=True):
    """Elements to overwrite in place: one of hex, zeros, zero and fill."""

    at: int = 0
    """The first element."""
    hex: str = ""
    """The new bytes."""
    zeros: int = 0
    """How many elements become zero."""
    zero: bool = False
    """Every element becomes zero."""
    fill: str = ""
    """The bytes of every element, in hex."""


class RepeatedHalf(StrictTable, kw_only=True):
    """A part of a tensor whose first half is repeated."""

    axis: int
    begin: int = 0
    end: int | None = None


class Patch(StrictTable, kw_only=True):
    """Bytes of a file to overwrite."""

    file: str
    at: int
    hex: str


Tensors = dict[str, dict[str, AddedTensor | Literal[False]]]
"""File → tensor → what to add or replace, or false to remove it."""


class CheckpointChanges(CaseTable, kw_only=True):
    """A case with a checkpoint: its base and the changes made to it."""

    base: str
    """A folder of fixtures/checkpoints or of fixtures/megatron; it is copied."""
    delete: list[str] = []
    """Files and folders to delete."""
    rename: dict[str, str] = {}
    """File → its new name."""
    copy: dict[str, str] = {}
    """File → the name of a copy."""
    outside: dict[str, str] = {}
    """File → a file of fixtures/megatron that is copied over it."""
    json: dict[str, dict[str, Any]] = {}
    """File → path in its JSON (``a.b``, or ``a/b`` where a key has dots) → new value."""
    unset: dict[str, list[str]] = {}
    """File → paths in its JSON to remove."""
    text: dict[str, str] = {}
    """File → its whole content."""
    drawn: dict[str, DrawnTensor] = {}
    """Tensor → random numbers to add or replace it with in model.safetensors."""
    words: dict[str, WordRows] = {}
    """Tensor → rows of words to replace it with in model.safetensors; tokenizer.json gets the words."""
    tensors: Tensors = {}
    values: dict[str, list[ValueChange]] = {}
    """Tensor, or a pattern with ``*`` → elements to overwrite."""
    twins: dict[str, str] = {}
    """Prefix → the prefix of the tensors whose bytes the tensors below it get."""
    halves: dict[str, int | list[RepeatedHalf]] = {}
    """Tensor → the dimension along which its first half is repeated, or the parts of it where that happens."""
    index: bool = False
    """Write the index anew from the shards."""
    header: dict[str, str] = {}
    """File → the text of its header; the data stays."""
    contents: megatron_cases.ContentsChange | None = None
    """Changes to .metadata."""
    arguments: dict[str, Any] = {}
    """Name → value of an argument saved by Megatron; or name → {folder = value} for single ranks."""
    elements: dict[str, list[megatron_cases.ChunkChange]] = {}
    """Megatron tensor, or ``*`` for every chunk of every weight → bytes to overwrite in its chunks."""
    patch: list[Patch] = []
    append: dict[str, str] = {}
    """File → hex of bytes to append; a file that does not exist is created."""
    truncate: dict[str, int] = {}
    """File → number of bytes that stay."""
    link: dict[str, str] = {}
    """Name → target of a symbolic link."""


class CheckpointCase(CheckpointChanges, kw_only=True):
    """A case of a rule on a checkpoint, a Megatron run or a manifest, which is recorded of the base as it was."""

    target: str = ""
    """A file in the folder to scan in its place."""
    options: dict[str, Any] = {}
    """Name → value of an option of the scan, see checkpoint/scan_options.py; `base` names a folder of fixtures/checkpoints."""


@dataclass(frozen=True)
class Case:
    rule: Rule
    kind: str  # bad or ok
    number: int
    table: dict[str, Any]

    def __str__(self) -> str:
        return f"{self.rule.code}-{self.kind}-{self.number}"


def load_cases() -> Iterator[Case]:
    """Load the cases of the built-in rules. A rule without a .toml has none, and its own test in test_rules.py fails."""
    for rule in rule_loader.load_rules():
        assert rule.path is not None
        path = rule.path.with_suffix(".toml")
        tables = tomllib.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
        for kind, cases in tables.items():
            for number, table in enumerate(cases):
                yield Case(rule, kind, number, table)


def build_checkpoint(table: Mapping[str, Any], folder: Path) -> Path:
    """Build a case's checkpoint in `folder`; return what to scan. Raises ValidationError for a key that no such case has."""
    msgspec.convert(table, CheckpointCase)
    write_checkpoint(table, folder)
    return folder / table["target"] if "target" in table else folder


def write_checkpoint(table: Mapping[str, Any], folder: Path) -> None:
    """Copy the base of a case to `folder` and change it as `CheckpointChanges` says."""
    base = MEGATRON if (MEGATRON / table["base"]).is_dir() else CHECKPOINTS
    shutil.copytree(base / table["base"], folder, dirs_exist_ok=True)
    for name in table.get("delete", []):
        shutil.rmtree(folder / name) if (folder / name).is_dir() else (folder / name).unlink()
    for name, new in table.get("rename", {}).items():
        (folder / name).rename(folder / new)
    for name, new in table.get("copy", {}).items():
        shutil.copy(folder / name, folder / new)
    for name, other in table.get("outside", {}).items():
        shutil.copy(MEGATRON / other, folder / name)
    for name in table.get("json", {}).keys() | table.get("unset", {}).keys():
        _edit_json(folder / name, table.get("json", {}).get(name, {}), table.get("unset", {}).get(name, []))
    for name, text in table.get("text", {}).items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(text.encode("utf-8", "surrogateescape"))
    if "drawn" in table:
        _draw(folder / "model.safetensors", table["drawn"])
    if "words" in table:
        _write_words(folder, table["words"])
    for name, changes in table.get("tensors", {}).items():
        edit_tensors(folder / name, changes)
    if table.keys() & {"values", "twins", "halves"}:
        _edit_values(folder, table)
    if table.get("index"):
        _write_index(folder)
    for name, text in table.get("header", {}).items():
        raw = (folder / name).read_bytes()
        data = raw[8 + int.from_bytes(raw[:8], "little") :]
        (folder / name).write_bytes(len(text.encode()).to_bytes(8, "little") + text.encode() + data)
    megatron_cases.edit(folder, table)
    for patch in table.get("patch", []):
        raw = bytearray((folder / patch["file"]).read_bytes())
        new = bytes.fromhex(patch["hex"])
        raw[patch["at"] : patch["at"] + len(new)] = new
        (folder / patch["file"]).write_bytes(raw)
    for name, tail in table.get("append", {}).items():
        with (folder / name).open("ab") as file:
            file.write(bytes.fromhex(tail))
    for name, stay in table.get("truncate", {}).items():
        (folder / name).write_bytes((folder / name).read_bytes()[:stay])
    for name, goal in table.get("link", {}).items():
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(goal)


def format_finding(finding: Finding) -> str:
    """A finding as a case expects it."""
    return f"{finding.place}: {finding.message}" if finding.place else finding.message


def _edit_json(path: Path, changes: dict[str, Any], removed: list[str]) -> None:
    value = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    for dotted, new in [*changes.items(), *((name, None) for name in removed)]:
        part, keys = value, dotted.split("/") if "/" in dotted else dotted.split(".")
        for key in keys[:-1]:
            part = part.setdefault(key, {})
        if dotted in removed:
            del part[keys[-1]]
        else:
            part[keys[-1]] = new
    path.write_text(json.dumps(value, indent=2), encoding="utf-8")


WIDTHS = {
    "F64": "f8", "F32": "f4", "F16": "f2", "BF16": "u2", "F8_E4M3": "u1", "F8_E5M2": "u1", "F8_E8M0": "u1",
    "I64": "i8", "I32": "i4", "U32": "u4", "I8": "i1", "U8": "u1",
}  # fmt: skip
"""dtype → numpy's; those that numpy lacks as patterns of the same width."""


def read_tensors(path: Path) -> dict[str, tuple[str, np.ndarray]]:
    """Return name → dtype and values (patterns where numpy lacks the dtype)."""
    raw = path.read_bytes()
    start = 8 + int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8:start])
    header.pop("__metadata__", None)
    return {
        name: (
            entry["dtype"],
            np.frombuffer(raw[start:][slice(*entry["data_offsets"])], WIDTHS[entry["dtype"]]).reshape(entry["shape"]),
        )
        for name, entry in header.items()
    }


def edit_tensors(path: Path, changes: dict[str, Any]) -> None:
    """Add, replace or remove tensors. dtypes that numpy lacks are saved as patterns, and then written under their own name."""
    tensors = read_tensors(path) if path.exists() else {}
    for name, change in changes.items():
        tensors.pop(name, None)
        if change is not False:
            tensors[name] = (change["dtype"], np.ones(tuple(change["shape"]), WIDTHS[change["dtype"]]))
    save_file({name: value for name, (_, value) in tensors.items()}, path, {"format": "pt"})
    raw = path.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + length])
    if all(header[name]["dtype"] == dtype for name, (dtype, _) in tensors.items()):
        return
    for name, (dtype, _) in tensors.items():
        header[name]["dtype"] = dtype
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + raw[8 + length :])


def _draw(path: Path, drawn: dict[str, Any]) -> None:
    """Add or replace tensors with random values; trained ones differ in the norms of their rows and columns."""
    from safetensors.numpy import load_file

    tensors: dict[str, Any] = load_file(path)
    random = np.random.default_rng(5)
    for pattern, entry in drawn.items():
        for number in range(entry.get("number", 1)):
            shape = tuple(entry["shape"])
            if entry["how"] == "positive":
                value = np.abs(random.normal(0, 0.02, shape))
            elif entry["how"] == "signs":
                value = np.where(random.normal(size=shape) < 0, -0.02, 0.02)
            elif entry["how"] == "codes":
                patterns = random.integers(0, 0x7F, shape) | random.integers(0, 2, shape) << 7
                value = decode("F8_E4M3", patterns.astype(np.uint8))
            elif entry["how"] == "integers":
                value = random.integers(-7, 8, shape)
            elif entry["how"] == "bytes":
                value = random.integers(0, 256, shape)
            elif entry["how"] == "uniform":  # as torch.nn.Linear starts
                bound = 1 / np.sqrt(shape[-1])
                value = random.uniform(-bound, bound, shape)
            else:
                value = random.normal(0, 0.02, shape)
            if entry["how"] == "trained":
                for axis, length in enumerate(shape):
                    own = random if axis != entry.get("stream") else np.random.default_rng(length)
                    scale = np.exp(own.normal(0, 0.5, length))
                    value *= scale.reshape([-1 if other == axis else 1 for other in range(len(shape))])
            if "fresh" in entry:
                axis, begin, end = entry["fresh"]
                part = value[begin:end] if axis == 0 else value[:, begin:end]
                part[:] = random.normal(0, 0.02, part.shape)
            value = value * entry.get("scale", 1.0) + entry.get("shift", 0.0)
            if "zeros" in entry:
                value[random.random(shape) < entry["zeros"]] = 0
            tensors[pattern.replace("*", str(number))] = value.astype(np.float32)
    save_file(tensors, path, {"format": "pt"})


def _write_words(folder: Path, tables: dict[str, Any]) -> None:
    """Write a vocabulary of words in four forms, in random order, and tables of rows for them."""
    from safetensors.numpy import load_file

    number = max(entry.get("words", 120) for entry in tables.values())
    words = ["".join(chr(97 + index // 5**place % 5) for place in range(4)) for index in range(number)]
    order = np.random.default_rng(6).permutation(4 * number)
    words[0] = "the"
    written = [form for word in words for form in (word, "Ġ" + word, word.capitalize(), word + "s")]
    forms = [written[place] for place in order]
    tokenizer = {"added_tokens": [], "model": {"type": "WordLevel", "vocab": {form: n for n, form in enumerate(forms)}}}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
    tensors: dict[str, Any] = load_file(folder / "model.safetensors")
    for name, entry in tables.items():
        random = np.random.default_rng(7)
        meanings = random.normal(0, 0.1, (number, 64))[order // 4]
        begin, how = entry.get("begin", 0), entry.get("how", "")
        rows = meanings + random.normal(0, 0.06, meanings.shape) + random.normal(0, 0.1, 64)
        rows[begin:] = np.roll(rows[begin:], entry.get("by", 0), axis=0)
        if how == "shuffled":
            rows[begin:] = rows[begin:][random.permutation(len(rows) - begin)]
        elif how == "filled":
            rows[begin : entry.get("end")] = rows[begin]
        elif how == "drawn":
            rows[begin:] = random.normal(0, 0.1, rows[begin:].shape)
        tensors[name] = rows[: 4 * entry.get("words", 120)].astype(np.float32)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


def _edit_values(folder: Path, table: Mapping[str, Any]) -> None:
    for shard in sorted(folder.glob("*.safetensors")):
        raw = bytearray(shard.read_bytes())
        start = 8 + int.from_bytes(raw[:8], "little")
        entries = json.loads(raw[8:start])
        entries.pop("__metadata__", None)
        for name, entry in entries.items():
            begin, end = (start + offset for offset in entry["data_offsets"])
            width = (end - begin) // max(1, int(np.prod(entry["shape"])))
            changes = (every for pattern, every in table.get("values", {}).items() if fnmatchcase(name, pattern))
            for change in chain.from_iterable(changes):
                at = begin + change.get("at", 0) * width
                if "hex" in change:
                    new = bytes.fromhex(change["hex"])
                elif "fill" in change:
                    new = bytes.fromhex(change["fill"]) * ((end - begin) // width)
                else:
                    new = bytes(end - begin if change.get("zero") else change["zeros"] * width)
                raw[at : at + len(new)] = new
            for prefix, other in table.get("twins", {}).items():
                if name.startswith(prefix):
                    source = entries[other + name.removeprefix(prefix)]["data_offsets"]
                    raw[begin:end] = raw[start + source[0] : start + source[1]]
            if name in table.get("halves", {}):
                value = np.frombuffer(bytes(raw[begin:end]), f"V{width}").reshape(entry["shape"]).copy()
                given = table["halves"][name]
                for part in given if isinstance(given, list) else [{"axis": given}]:
                    along = np.swapaxes(value, 0, part["axis"])[part.get("begin", 0) : part.get("end")]
                    along[len(along) // 2 :] = along[: len(along) // 2]
                raw[begin:end] = value.tobytes()
        shard.write_bytes(raw)


def _write_index(folder: Path) -> None:
    places, total = {}, 0
    for shard in sorted(folder.glob("model-*.safetensors")):
        for name, (_, value) in read_tensors(shard).items():
            places[name] = shard.name
            total += value.nbytes
    index = {"metadata": {"total_size": total}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2), encoding="utf-8")
