"""Parts: each of several machines computes its share of all passes and writes it to a file; `join` combines the files.

A part holds its command and, for every pass, its share, the hash of the plan, and the identity of every file. So `join` refuses a
part of another plan, version or state of the checkpoint.
"""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import msgspec

from ckptcheck import __version__
from ckptcheck.errors import CkptcheckError, EvidenceError, UsageError
from ckptcheck.runners.runner import Local, MalformedResult, R, U, Work, decode_results
from ckptcheck.text.file_io import read_regular_file, replace_file
from ckptcheck.text.formatting import join_truncated

SCHEMA = "ckptcheck-part/1"
SUFFIX = ".ckptcheck-part"
LARGEST = 1 << 28
"""Most bytes of a part that are read."""
PART = re.compile(r"([0-9]{1,5})/([0-9]{1,5})")
MOST_COMMANDS = 3
"""Most commands in a hint."""


class PassPart(msgspec.Struct):
    """The share of one pass."""

    plan: str
    """Hash of the whole pass, see `hash_plan`."""
    objects: dict[str, str]
    """File → a text that changes when it is replaced."""
    begin: int
    end: int
    """The units [begin, end) of the plan."""
    results: list[bytes]


class PartFile(msgspec.Struct):
    """The content of a file."""

    schema: str
    version: str
    verb: str
    arguments: dict[str, Any]
    """The arguments of the verb that differ from their defaults; ``*`` has the positional ones."""
    index: int
    number: int
    passes: dict[str, PassPart] = {}

    @property
    def label(self) -> str:
        """The number of this part and of all parts: ``3/7``."""
        return f"{self.index}/{self.number}"


def parse_part(text: str) -> tuple[int, int]:
    """Return (I, N) of ``I/N``. Raises UsageError.

    >>> parse_part("3/7")
    (3, 7)
    """
    found = PART.fullmatch(text)
    if not found or int(found[1]) >= int(found[2]):
        raise UsageError(f"{text!r} is no part", hint="write it as I/N, where I goes from 0 to N-1: 0/8")
    return int(found[1]), int(found[2])


def name_part(index: int, number: int) -> str:
    """Return the name of a part's file; the names sort in the order of the parts."""
    return f"part-{index:0{len(str(number - 1))}}-of-{number}{SUFFIX}"


def describe_command(verb: str, arguments: Mapping[str, Any], part: str, folder: str) -> str:
    """Return the command that makes a part.

    >>> describe_command("scan", {"*": ["./my model"], "select": ["VAL"], "set": ["no-mmap=True"]}, "3/7", "parts")
    "ckptcheck scan './my model' --select VAL --set no-mmap=True --part 3/7 -o parts"
    """
    given = {
        name: value if isinstance(value, (list, tuple)) else [value] for name, value in arguments.items()
    }  # a damaged part may have anything
    words = ["ckptcheck", verb, *map(str, given.pop("*", ()))]
    for name, values in given.items():
        flag = "--" + name.replace("_", "-")
        for one in values:
            words += [flag] if one is True else [flag, str(one)]
    return shlex.join([*words, "--part", part, "-o", folder])


class PartFolder(Protocol):
    """A folder whose files are written whole or not at all."""

    name: str
    """The folder as the user named it."""

    def list_parts(self) -> list[str]:
        """Return the names of the parts, sorted. Raises CkptcheckError."""
        ...

    def read(self, part: str) -> bytes:
        """Return a part. Raises EvidenceError."""
        ...

    def write(self, part: str, content: bytes) -> None:
        """Write a part in place of any other. Raises CkptcheckError."""
        ...

    def locate(self, part: str) -> str:
        """Return the path or the address of a part."""
        ...


class DiskFolder:
    """A folder on a disk or on a file system that the machines share; a `PartFolder`. checkpoint/objects has one in a store."""

    def __init__(self, path: str | Path) -> None:
        """Name the folder; it is made when the first part is written."""
        self.name = str(path)
        self._path = Path(path)

    def list_parts(self) -> list[str]:
        """Return the names of the parts, sorted. Raises CkptcheckError."""
        try:
            return sorted(path.name for path in self._path.iterdir() if path.name.endswith(SUFFIX))
        except OSError as error:
            raise CkptcheckError(f"cannot list {self._path}: {error.strerror or error}") from error

    def read(self, part: str) -> bytes:
        """Return a part. Raises EvidenceError."""
        try:
            return read_regular_file(self._path / part, LARGEST, is_text=False)
        except OSError as error:
            raise EvidenceError(f"cannot read {self.locate(part)}: {error.strerror or error}") from error

    def write(self, part: str, content: bytes) -> None:
        """Write a part in place of any other. Raises CkptcheckError."""
        self._path.mkdir(parents=True, exist_ok=True)
        replace_file(self._path / part, content)

    def locate(self, part: str) -> str:
        """Return the path of a part."""
        return str(self._path / part)


class PartWriter:
    """Runs one share of all work and keeps the results; `write` saves them.

    The caller of a pass gets only the results of this share, and has to discard what it computes from them.
    """

    def __init__(
        self,
        folder: str | Path | PartFolder,
        part: str,
        verb: str,
        arguments: Mapping[str, Any],
        *,
        jobs: int | None = None,
    ) -> None:
        index, number = parse_part(part)
        self._folder = _open(folder)
        self._name = name_part(index, number)
        self._jobs = jobs
        self._part = PartFile(SCHEMA, __version__, verb, dict(arguments), index, number)
        self._torn: list[str] = []
        self.computed = 0
        """Bytes that were read for this part."""

    def run(self, work: Work[U, R], units: Sequence[U]) -> Iterator[tuple[U, R]]:
        """Yield the units of this share with their results."""
        objects = dict(work.list_objects())
        plan = hash_plan(work, units, objects)
        begin, end = find_share([work.weigh(unit) for unit in units], self._part.index, self._part.number)
        done = PassPart(plan, objects, begin, end, [])
        is_whole = True
        for unit, result in Local(self._jobs).run(work, units[begin:end]):
            done.results.append(msgspec.msgpack.encode(result))
            is_whole &= work.is_whole(result)
            self.computed += work.weigh(unit)
            yield unit, result
        if not is_whole or dict(work.list_objects()) != objects:
            self._torn.append(work.name)
        self._part.passes[work.name] = done

    def write(self) -> str:
        """Save the part, whole or not at all, and return its path or address.

        Raises CkptcheckError, and EvidenceError if something could not be read or files changed: the part is there all the same.
        """
        self._folder.write(self._name, msgspec.msgpack.encode(self._part))
        if self._torn:
            part = self._part
            command = describe_command(part.verb, part.arguments, part.label, self._folder.name)
            raise EvidenceError(
                f"part {part.label} could not read everything: {join_truncated(self._torn)}",
                hint=f"run it again: {command}",
            )
        return self._folder.locate(self._name)


class Parts:
    """Runs no work: takes the results that parts in a folder hold."""

    def __init__(self, folder: str | Path | PartFolder) -> None:
        """Name the folder, which may be ``s3://bucket/folder``; the parts are read when they are needed."""
        self.folder = folder
        self._parts: list[PartFile] = []

    def read_command(self) -> tuple[str, dict[str, Any]]:
        """Return the verb and the arguments of the parts. Raises EvidenceError if one is missing, doubled or of another plan."""
        self._parts = self._parts or read_parts(self.folder)
        return self._parts[0].verb, self._parts[0].arguments

    def run(self, work: Work[U, R], units: Sequence[U]) -> Iterator[tuple[U, R]]:
        """Yield each unit with its result. Raises EvidenceError if a part has none, or comes from another plan or state."""
        self.read_command()
        objects = dict(work.list_objects())
        plan = hash_plan(work, units, objects)
        weights = [work.weigh(unit) for unit in units]
        for part in self._parts:
            share = part.passes.get(work.name)
            begin, end = find_share(weights, part.index, part.number)
            if share is None:
                raise self._refuse(part, f"has no {work.name}")
            changed = [name for name in objects if share.objects.get(name) != objects[name]]
            if changed:
                raise self._refuse(part, f"was made before {join_truncated(changed)} changed")
            if share.plan != plan or (share.begin, share.end) != (begin, end):
                raise self._refuse(part, f"divides the {work.name} in another way than this run")
            try:
                yield from decode_results(work, units[begin:end], share.results)
            except MalformedResult as error:
                raise self._refuse(part, f"holds other results than this version writes: {error}") from error

    def _refuse(self, part: PartFile, text: str) -> EvidenceError:
        command = describe_command(part.verb, part.arguments, part.label, _open(self.folder).name)
        # Put all into one sentence, because the report of a rule that raises this shows nothing else.
        return EvidenceError(f"part {part.label} {text}; run it again: {command}")


def hash_plan(work: Work[U, R], units: Sequence[U], objects: Mapping[str, str]) -> str:
    """Return a hash of a pass's plan: the same on every machine that sees the same files."""
    import hashlib

    state = hashlib.sha256(repr((__version__, work.name, sorted(objects.items()))).encode("utf-8", "surrogatepass"))
    for unit in units:
        state.update(work.describe(unit).encode("utf-8", "surrogatepass") + b"\n")
    return state.hexdigest()


def find_share(weights: Sequence[int], index: int, number: int) -> tuple[int, int]:
    """Return the units [begin, end) of a part: parts follow each other, and hold about as many bytes each.

    >>> [find_share([1, 1, 1, 1, 4], index, 3) for index in range(3)]
    [(0, 3), (3, 4), (4, 5)]
    """
    total, before = sum(weights), 0
    bounds = [0] * (number + 1)
    place = 0
    for at, weight in enumerate(weights):
        # a unit goes to the part in which its middle lies; empty units spread over the parts too
        middle = (2 * before + weight) * number // (2 * total) if total else at * number // len(weights)
        while place < min(middle, number - 1):
            place += 1
            bounds[place] = at
        before += weight
    bounds[place + 1 :] = [len(weights)] * (number - place)
    return bounds[index], bounds[index + 1]


def _open(folder: str | Path | PartFolder) -> PartFolder:
    return DiskFolder(folder) if isinstance(folder, (str, Path)) else folder


def _decode_part(content: bytes, place: str) -> PartFile:
    try:
        part = msgspec.msgpack.decode(content, type=PartFile)
        parse_part(part.label)
        return part
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, UsageError) as error:
        raise EvidenceError(
            f"{place} is no part of ckptcheck: {error}", hint="remove it, and run the command again that wrote it"
        ) from error


def read_parts(where: str | Path | PartFolder) -> list[PartFile]:
    """Return the parts of a folder in order.

    Raises CkptcheckError if there is none, EvidenceError if one is missing, doubled, of another command or version.
    """
    folder = _open(where)
    names = folder.list_parts()
    if not names:
        raise CkptcheckError(
            f"{folder.name} holds no part",
            hint=f"ckptcheck scan TARGET --part 0/8 -o {shlex.quote(folder.name)} writes the first of 8",
        )
    parts = {name: _decode_part(folder.read(name), folder.locate(name)) for name in names}
    for name, part in parts.items():
        if (part.schema, part.version) != (SCHEMA, __version__):
            command = describe_command(part.verb, part.arguments, part.label, folder.name)
            raise EvidenceError(
                f"{name} was written by ckptcheck {part.version}, and this is {__version__}",
                hint=f"run it again: {command}",
            )
    plans = Counter(_command_of(part) for part in parts.values())
    usual = plans.most_common(1)[0][0]
    for name, part in parts.items():
        if _command_of(part) != usual:
            command = describe_command(part.verb, part.arguments, part.label, folder.name)
            raise EvidenceError(
                f"{name} is of another command than most parts: {command}",
                hint=f"move {shlex.quote(folder.locate(name))} to a folder of its own",
            )
    by_index: dict[int, str] = {}
    for name, part in parts.items():
        if part.index in by_index:
            raise EvidenceError(
                f"part {part.label} is there twice: {by_index[part.index]} and {name}",
                hint=f"remove {shlex.quote(folder.locate(name))}",
            )
        by_index[part.index] = name
    one = next(iter(parts.values()))
    absent = [f"{index}/{one.number}" for index in range(one.number) if index not in by_index]
    if absent:
        commands = [describe_command(one.verb, one.arguments, label, folder.name) for label in absent[:MOST_COMMANDS]]
        more = f", and so the other {len(absent) - MOST_COMMANDS}" if len(absent) > MOST_COMMANDS else ""
        noun = "part" if len(absent) == 1 else "parts"
        raise EvidenceError(
            f"{noun} {join_truncated(absent)} {'is' if len(absent) == 1 else 'are'} missing in {folder.name}",
            hint=f"run {'it' if len(absent) == 1 else 'them'}: {'; '.join(commands)}{more}",
        )
    return [parts[by_index[index]] for index in range(one.number)]


def _command_of(part: PartFile) -> str:
    return repr((part.verb, sorted(part.arguments.items()), part.number))
