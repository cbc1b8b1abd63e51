"""The cases of the rules: a tiny checkpoint, what is done to it, and what the rule must say then.

A case is a table of a rule's .toml. Its keys, applied in this order::

    title    what the case shows
    base     a folder of fixtures/checkpoints or of fixtures/megatron
    delete   [file]                     rename  {file = new name}        copy  {file = new name}
    outside  {file = a file of fixtures/megatron}        copied over it
    json     {file = {"a.b" = value}}   unset   {file = ["a.b"]}         text  {file = "the whole content"}
    drawn    {name = {how, shape, number}}               put random F32 tensors in model.safetensors: how is normal, uniform,
             or trained, which has rows and columns of different norms; * in a name stands for 0 to number - 1
    tensors  {file = {name = {dtype, shape} | false}}    add, replace (filled with ones) or remove tensors
    values   {tensor = [{at, hex} | {at, zeros} | {zero = true}]}   overwrite elements, in place
    twins    {prefix = other prefix}    give tensors below one prefix the bytes of those below another
    halves   {tensor = 0}               repeat a tensor's first half along a dimension; [{axis, begin, end}] of parts of it
    index    true                       write the index anew from the shards
    header   {file = "the header's text"}                the data stays
    patch    [{file, at, hex}]          overwrite bytes; append {file = hex}; truncate {file = bytes that stay}
    link     {name = goal}              a symbolic link
    target   a file in the folder to scan in its place
    against  a folder of fixtures/checkpoints that is compared with this one; default: the base as it was
    before   {file = {name = {dtype, shape} | false}}    the same as `tensors`, done to the one it is compared with
    recast   {tensor = dtype}           cast a tensor      row  {tensor = other}   give it the first row of the other's
    options  {name = value}             what the user asks of the scan, see checkpoint/options.py
    diff     {cast, rtol, atol, critic} how the two are compared
    contents  {drop = [pattern], copy = {pattern = new}, shape, drop_chunks, boxes, unplaced, file}    edit .metadata
    arguments {name = number}           arguments saved by Megatron; or {name = {folder = number}}, of one rank
    elements  {key = [{chunk, at, hex | zeros | zero | twin = [key, chunk], crc = false}]}    bytes of a Megatron tensor
    faults   [{kind, name, other, since}]  what the fake engine does wrong in a trial; ranks, draft, empty, device: how it is made;
    trainer  {unsteady, apart, …}       what the fake trainer does wrong; cache: the engine keeps prefixes
    settings {name = value}             of the trial, see refit/settings.py
    job      the text of a job's configuration; name: its file (job.yaml); a base becomes the folder model beside it
    files    {name = text}              further files of a job; overrides ["key=value"]; told {engine_version, te_version}
    syncs    [{…}]                      the weight syncs of a record, see recorded.py; damage {line = text}; cut bytes
    servers  [{…}]                      running servers, see attached.py; reference {…} and unfit, trainer {off, untold}
    expect   ["file key: message"]      skip = "the reason" where the rule must be skipped
    python   "test_file.py::test"       the test that plays a case which no files can show, such as a race
"""

from __future__ import annotations

import json
import re
import shutil
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import megatron_cases
import numpy as np
from safetensors.numpy import save_file

from ckptcheck import pack
from ckptcheck.rule import Finding, Rule

ROOT = Path(__file__).parent.parent
CHECKPOINTS = ROOT / "fixtures" / "checkpoints"
MEGATRON = ROOT / "fixtures" / "megatron"
KEYS = frozenset(re.findall(r"^ {4}(\w+)  ", __doc__, re.MULTILINE)) | frozenset(
    "rename unset text copy append truncate skip row arguments name overrides told damage cut reference unfit".split()  # noqa: SIM905
)
"""Those above that begin a line, and those that share one."""


@dataclass(frozen=True)
class Case:
    rule: Rule
    kind: str  # bad or ok
    number: int
    table: dict[str, Any]

    def __str__(self) -> str:
        return f"{self.rule.code}-{self.kind}-{self.number}"


def all_cases() -> Iterator[Case]:
    for rule in pack.load():
        assert rule.path is not None
        tables = tomllib.loads(rule.path.with_suffix(".toml").read_text(encoding="utf-8"))
        for kind, cases in tables.items():
            for number, table in enumerate(cases):
                yield Case(rule, kind, number, table)


def build(table: dict[str, Any], folder: Path) -> Path:
    """Build a case's checkpoint in `folder`; return what to scan."""
    unknown = table.keys() - KEYS
    assert not unknown, f"a case does not know {unknown}"
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
        (folder / name).write_bytes((folder / name).read_bytes() + bytes.fromhex(tail))
    for name, stay in table.get("truncate", {}).items():
        (folder / name).write_bytes((folder / name).read_bytes()[:stay])
    for name, goal in table.get("link", {}).items():
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(goal)
    return folder / table["target"] if "target" in table else folder


def line(finding: Finding) -> str:
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
    "F64": "f8", "F32": "f4", "F16": "f2", "BF16": "u2", "F8_E4M3": "u1", "F8_E8M0": "u1",
    "I64": "i8", "I32": "i4", "I8": "i1", "U8": "u1",
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
            if entry["how"] == "uniform":  # as torch.nn.Linear starts
                bound = 1 / np.sqrt(shape[-1])
                value = random.uniform(-bound, bound, shape)
            else:
                value = random.normal(0, 0.02, shape)
            if entry["how"] == "trained":
                for axis, length in enumerate(shape):
                    scale = np.exp(random.normal(0, 0.5, length))
                    value *= scale.reshape([-1 if other == axis else 1 for other in range(len(shape))])
            tensors[pattern.replace("*", str(number))] = value.astype(np.float32)
    save_file(tensors, path, {"format": "pt"})


def _edit_values(folder: Path, table: dict[str, Any]) -> None:
    for shard in sorted(folder.glob("*.safetensors")):
        raw = bytearray(shard.read_bytes())
        start = 8 + int.from_bytes(raw[:8], "little")
        entries = json.loads(raw[8:start])
        entries.pop("__metadata__", None)
        for name, entry in entries.items():
            begin, end = (start + offset for offset in entry["data_offsets"])
            width = (end - begin) // max(1, int(np.prod(entry["shape"])))
            for change in table.get("values", {}).get(name, []):
                at = begin + change.get("at", 0) * width
                if "hex" in change:
                    new = bytes.fromhex(change["hex"])
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
