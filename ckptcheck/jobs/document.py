"""The common form of every configuration: values by dotted path, each with the file and line where it is written.

The readers of YAML, TOML, Hydra overrides and launch lines all produce a `Document`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from ckptcheck.checkpoint.document import clip
from ckptcheck.errors import CkptcheckError
from ckptcheck.jobs.budget import CHARACTERS, WorkBudget, current_budget
from ckptcheck.text.file_io import path_exists, read_regular_file, real_path
from ckptcheck.text.formatting import format_bytes

LARGEST = 1_000_000
"""Largest file that is read, in bytes. The longest known job configurations have 25 kB; PyYAML needs about ten seconds
for a megabyte."""
DEEPEST = 200
"""Most dots of a path: each names one more section above it, whose own path is kept."""


@dataclass(frozen=True)
class Leaf:
    """One value of a configuration, with the place where it is written."""

    value: object
    """A scalar, None, a list, or {} for an empty section."""
    key: str
    """The dotted key as the file writes it."""
    file: str | None = None
    """The file as the report names it; None for a value from the command line of ckptcheck."""
    line: int | None = None
    """The line in `file`, from 1; None where it is not known."""
    reason: str = ""
    """Why the value is known only when the job runs ("set under a condition"); "" where the value is known."""
    is_default: bool = False
    """Whether a configuration of the framework itself writes the value, and not one of the job."""


@dataclass(frozen=True)
class Refusal:
    """Something in a configuration or on a command line that Hydra refuses, so that the job does not start."""

    leaf: Leaf
    """What is refused, with its place."""
    why: str
    """Why, as a sentence."""
    is_override: bool = True
    """Whether it is an override of a command line; else it is in a configuration file."""
    missing: str = ""
    """The key that the configuration does not have, where that is why."""
    near: str = ""
    """A key that it has and `missing` is almost; "" where there is none."""
    unlocked_by: str = ""
    """The choice of a config group with which the configuration has the key; "" where none is known."""
    note: str = ""
    """The note of the document that says the same; "" where there is none."""


@dataclass(frozen=True)
class AmbiguousMerge:
    """A key that several mappings of one ``<<`` have. Which one wins depends on PyYAML's version (yaml/pyyaml#953)."""

    leaf: Leaf
    """The value by the YAML specification, which PyYAML takes up to 6.0.3."""
    other: object
    """The value that PyYAML 6.0.4 takes."""


@dataclass(frozen=True)
class LostArguments:
    """Arguments of a launch line that are never passed, because the line ends before them."""

    file: str
    """The script, as the report names it."""
    end: int
    """The line where the launch line ends, from 1."""
    last_line: str
    """The text of that line."""
    first: str
    """The first argument that is lost."""
    begin: int
    """The line where the lost arguments begin."""


@dataclass
class Document:
    """The values of one or several configuration files, merged."""

    leaves: dict[str, Leaf] = field(default_factory=dict)
    """Dotted path → leaf; a later value replaces an earlier one."""
    environment: dict[str, Leaf] = field(default_factory=dict)
    """Name of an environment variable → the value that a script exports or a configuration sets."""
    notes: list[str] = field(default_factory=list)
    """One sentence for each file that is named and could not be read."""
    versions: dict[str, Leaf] = field(default_factory=dict)
    """Package → its version, where a file pins one."""
    script: str = ""
    """The Python module or program that a launch line starts."""
    folder: str = ""
    """The last folder that a launch script changes to, as it writes it."""
    launch: tuple[str, ...] = ()
    """The words of the command that starts the job, without their unknown parts."""
    sender: str = ""
    """The program by which the script starts the job in another shell: bash, ssh, docker, ray; "" where it starts it itself."""
    is_in_code: bool = False
    """Whether a Python script makes the configuration, and reads no command line for it."""
    engine_script: str = ""
    """The program of the launch script's other command, which starts the job's engine; "" where it has none."""
    is_incomplete: bool = False
    """Whether a configuration that this one builds on could not be read."""
    is_composed: bool = False
    """Whether Hydra composes this configuration and all its files were read, so that a key which is not there does not exist."""
    has_sweeps: bool = False
    """Whether the launch line asks for several runs (``--multirun``)."""
    refusals: list[Refusal] = field(default_factory=list)
    """What Hydra refuses."""
    absent: list[Refusal] = field(default_factory=list)
    """Files that a script sources and that are not there, so that it stops (``set -e``)."""
    plain_overrides: dict[str, Leaf] = field(default_factory=dict)
    """Key → override that sets it without ``+``, as far as no composed configuration says whether the key exists."""
    gaps: dict[str, str] = field(default_factory=dict)
    """What of the configuration could not be read → why, and what to give; while there is one, no rule passes."""
    crowded: dict[str, Leaf] = field(default_factory=dict)
    """What the commands of a script put on one GPU together: name in `FIELDS` → value."""
    lost: LostArguments | None = None
    """The arguments after the end of a launch line that ends too early."""
    takes_flags: str = ""
    """The Python script that takes settings from a command line which is not here; "" where there is none."""
    resolvers: Mapping[str, Callable[[float, float], float]] = field(default_factory=dict)
    """The resolvers that the job's framework registers and that compute with two numbers."""
    ambiguous: list[AmbiguousMerge] = field(default_factory=list)
    """Values that depend on the version of PyYAML."""
    replaced: dict[str, Leaf] = field(default_factory=dict)
    """Key of a value that replaced one of another file, as it is written → the replaced value."""
    defaulted: set[str] = field(default_factory=set)
    """Variables of the environment that have the defaults which the job gives them: the environment may set others."""
    budget: WorkBudget = field(default_factory=current_budget, repr=False, compare=False)
    """The work that reading the job may still take."""
    resolved: dict[str, object] = field(default_factory=dict, repr=False, compare=False)
    """Dotted path → what `interpolation.resolve` found; emptied by every change of the leaves."""
    _children: dict[str, dict[str, None]] = field(default_factory=dict, repr=False, compare=False)
    """Dotted path of a section → the names of its keys, in order; "" is the root."""

    def put(self, path: str, leaf: Leaf) -> None:
        """Set a leaf. A scalar replaces a section of the same name, and a section replaces a scalar; {} keeps a section.

        Raises CkptcheckError for a path of more than DEEPEST dots.
        """
        self.require_room(path, leaf)
        if leaf.value == {} and path in self._children:
            return
        old = self.leaves.get(path)
        if old is not None and old.file is not None and old.file != leaf.file and not old.is_default:
            self.replaced[leaf.key] = old
        if old is None:
            self.remove(path)
            self._add_to_sections(path)
        self.leaves[path] = leaf
        self.resolved.clear()

    def require_room(self, path: str, leaf: Leaf) -> None:
        """Take the path of a leaf from the budget. Raises CkptcheckError for one of more than DEEPEST dots, too."""
        self.budget.spend(len(path) // CHARACTERS, leaf.file or "the command line")
        if path.count(".") > DEEPEST:
            where = leaf.file or "the command line"
            raise CkptcheckError(f"the key {clip(path, 40)} of {where} has more than {DEEPEST} dots")

    def put_value(self, path: str, leaf: Leaf) -> None:
        """Set a leaf; the keys of a dict are merged into the section at its path, one leaf each."""
        if not isinstance(leaf.value, dict) or not leaf.value:
            self.put(path, leaf)
            return
        for name, value in leaf.value.items():
            self.put_value(f"{path}.{name}", replace(leaf, value=value, key=f"{leaf.key}.{name}"))

    def _add_to_sections(self, path: str) -> None:
        """Enter a path among the keys of its section, and that among those of the section above, up to the root."""
        while True:
            section, _, name = path.rpartition(".")
            siblings = self._children.setdefault(section, {})
            if name in siblings:
                return
            siblings[name] = None
            self.leaves.pop(section, None)
            if not section:
                return
            path = section

    def remove(self, path: str) -> None:
        """Remove a leaf, or a section with all its leaves."""
        self.resolved.clear()
        waiting = [path]
        while waiting:
            section = waiting.pop()
            self.leaves.pop(section, None)
            waiting += [f"{section}.{name}" for name in self._children.pop(section, ())]
        while path:
            section, _, name = path.rpartition(".")
            siblings = self._children.get(section, {})
            if name not in siblings:
                return
            del siblings[name]
            if siblings or not section:
                return
            self._children.pop(section, None)
            path = section

    def update(self, other: Document, section: str = "") -> None:
        """Merge another document into this one; where both have a value, the other's wins. section: for the other's values."""
        for path, leaf in other.leaves.items():
            self.put(f"{section}.{path}" if section else path, leaf)
        self.environment |= other.environment
        self.notes += other.notes
        self.versions |= other.versions
        self.replaced |= other.replaced
        self.defaulted |= other.defaulted
        self.script, self.folder = other.script or self.script, other.folder or self.folder
        self.launch, self.sender = other.launch or self.launch, other.sender or self.sender
        self.is_in_code |= other.is_in_code
        self.engine_script = other.engine_script or self.engine_script
        self.is_incomplete |= other.is_incomplete
        self.is_composed |= other.is_composed
        self.refusals += other.refusals
        self.absent += other.absent
        self.plain_overrides |= other.plain_overrides
        self.ambiguous += other.ambiguous
        self.gaps |= other.gaps
        self.lost = other.lost or self.lost
        self.crowded |= other.crowded
        self.takes_flags = other.takes_flags or self.takes_flags

    def iter_section(self, path: str) -> Iterator[tuple[str, Leaf]]:
        """Yield (path below the section, leaf) for every leaf of a section."""
        waiting = self.keys_of(path)[::-1]
        while waiting:
            rest = waiting.pop()
            full_path = f"{path}.{rest}" if path else rest
            if full_path in self.leaves:
                yield rest, self.leaves[full_path]
            waiting += [f"{rest}.{name}" for name in reversed(self._children.get(full_path, {}))]

    def keys_of(self, path: str) -> list[str]:
        """Return the names of the keys of a section, in the order in which they are written; "" is the root."""
        return list(self._children.get(path, ()))

    def has_section(self, path: str) -> bool:
        """Return whether a section is at this path, an empty one included."""
        leaf = self.leaves.get(path)
        return path in self._children or (leaf is not None and leaf.value == {})

    def takes_from(self, leaf: Leaf) -> bool:
        """Return whether the document has this value of a file, or some of it where it is a section: nothing replaced it."""
        below = f"{leaf.key}."
        return any(own.file == leaf.file and f"{own.key}.".startswith(below) for own in self.leaves.values())

    def has(self, path: str) -> bool:
        """Return whether the document has a leaf or a section at this path."""
        return path in self.leaves or path in self._children


def is_hidden(path: Path, folder: Path) -> bool:
    """Whether a file or folder that a job names is a hidden one of the user: ``.env``, ``~/.bashrc``, ``~/.docker/config.json``.

    Such files hold secrets, and of configurations only what Hydra wrote of a run (``.hydra``).
    folder: the job's, which may be hidden.
    """
    try:
        parts = Path(os.path.relpath(real_path(path), real_path(folder))).parts
    except ValueError:  # on another drive of Windows
        parts = path.parts
    return any(part.startswith(".") and part not in (".", "..", ".hydra") for part in parts)


def read_text_file(path: Path, name: str) -> str:
    """Read a UTF-8 text file that the user or another file names.

    Args:
        path: The file to read.
        name: The name that error messages use for the file.

    Raises:
        CkptcheckError: The path is a folder, cannot be read, is not text, or is larger than `LARGEST`.
    """
    try:
        if path.is_dir():
            raise CkptcheckError(f"{name} is a folder", hint="name the job's configuration: a .yaml, .toml or .sh file")
        if not path.is_file():
            raise CkptcheckError(f"{name} does not exist" if not path_exists(path) else f"{name} is not a file")
        raw = read_regular_file(real_path(path), LARGEST + 1)
        if len(raw) > LARGEST:
            raise CkptcheckError(
                f"{name} has {format_bytes(path.stat().st_size)}; no job's configuration has more than 1 MB"
            )
    except OSError as error:
        raise CkptcheckError(f"cannot read {name}: {error.strerror or error}") from error
    except ValueError as error:
        # The name contains a NUL.
        raise CkptcheckError(f"{name!r} is no name of a file") from error
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise CkptcheckError(f"{name}:{line} is not UTF-8 text (byte {error.start})") from error
    if (nul_position := text.find("\0")) >= 0:
        raise CkptcheckError(f"{name}:{text.count(chr(10), 0, nul_position) + 1} holds a NUL; it is not a text file")
    return text
