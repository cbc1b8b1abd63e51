"""A configuration as leaves with their places: what YAML, TOML, overrides and launch lines all become."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from ckptcheck.errors import CkptcheckError
from ckptcheck.phrase import size

LARGEST = 1_000_000
"""Bytes of a file. The longest job configurations known have 25 kB; PyYAML takes about ten seconds for a megabyte."""


@dataclass(frozen=True)
class Leaf:
    """A value and where it was written. value: a scalar, None, a list, or {} for an empty section.

    file: as the report names it, None for what was given on the command line. key: as written, dotted.
    reason: why nobody can tell the value without running something ("set under a condition"), "" where it can be told.
    """

    value: object
    key: str
    file: str | None = None
    line: int | None = None
    reason: str = ""


@dataclass
class Document:
    """leaves: dotted path → leaf; a later one replaces an earlier one. environment: what a script exports.

    notes: what could not be followed, a sentence each; incomplete: a configuration was among it. versions: package →
    version, where a file pins one.
    script: the Python module or program that a launch line starts.
    """

    leaves: dict[str, Leaf] = field(default_factory=dict)
    environment: dict[str, Leaf] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    versions: dict[str, Leaf] = field(default_factory=dict)
    script: str = ""
    incomplete: bool = False
    _sections: set[str] = field(default_factory=set, repr=False)

    def put(self, path: str, leaf: Leaf) -> None:
        """Set a leaf; a scalar replaces a section of this name, and a section a scalar."""
        if path not in self.leaves:
            if path in self._sections and leaf.value != {}:
                self.remove(path)
            parts = path.split(".")
            for number in range(1, len(parts)):
                above = ".".join(parts[:number])
                self.leaves.pop(above, None)
                self._sections.add(above)
        self.leaves[path] = leaf

    def remove(self, path: str) -> None:
        """Remove a leaf, or a section with all that is below it."""
        for name in [name for name in self.leaves if name == path or name.startswith(f"{path}.")]:
            del self.leaves[name]

    def update(self, other: Document) -> None:
        """Lay another document over this one."""
        for path, leaf in other.leaves.items():
            self.put(path, leaf)
        self.environment |= other.environment
        self.notes += other.notes
        self.versions |= other.versions
        self.script = other.script or self.script
        self.incomplete |= other.incomplete

    def below(self, path: str) -> Iterator[tuple[str, Leaf]]:
        """Yield (rest of the path, leaf) for all leaves of a section."""
        for name, leaf in self.leaves.items():
            if name.startswith(f"{path}."):
                yield name[len(path) + 1 :], leaf

    def has(self, path: str) -> bool:
        """Whether there is a leaf or a section of this name."""
        return path in self.leaves or (path in self._sections and any(self.below(path)))


def text_of(path: Path, name: str) -> str:
    """Read a text file that may be anything. name: as the user called it.

    Raises CkptcheckError for a folder, what cannot be read, what is no text, and what is too large for a configuration.
    """
    try:
        if path.is_dir():
            raise CkptcheckError(f"{name} is a folder", hint="name the job's configuration: a .yaml, .toml or .sh file")
        if not path.is_file():
            raise CkptcheckError(f"{name} does not exist" if not path.exists() else f"{name} is not a file")
        with path.open("rb") as file:
            raw = file.read(LARGEST + 1)
        if len(raw) > LARGEST:
            raise CkptcheckError(f"{name} has {size(path.stat().st_size)}; no job's configuration has more than 1 MB")
    except OSError as error:
        raise CkptcheckError(f"cannot read {name}: {error.strerror or error}") from error
    except ValueError as error:  # a NUL in the name
        raise CkptcheckError(f"{name!r} is no name of a file") from error
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise CkptcheckError(f"{name}:{line} is not UTF-8 text (byte {error.start})") from error
    if (at := text.find("\0")) >= 0:
        raise CkptcheckError(f"{name}:{text.count(chr(10), 0, at) + 1} holds a NUL; it is not a text file")
    return text
