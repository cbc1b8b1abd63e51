"""One entry of a ``defaults:`` list: the configuration that it names, and the package that its values go into.

The terms and the arithmetic are those of hydra-core 1.3 with version_base 1.2 or later (``hydra/core/default_element.py``).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ckptcheck.jobs.document import Leaf

SELF = "_self_"
FILE = re.compile(r"[^@]*\.ya?ml")
"""A name with the suffix of a file: NeMo-RL's ``defaults:`` hold paths, whose values go to the root."""
HEADER = re.compile(r"#\s*@(\w+)\s+(\S+)\s*")


class DefaultsError(ValueError):
    """An entry, or a list, that Hydra refuses. The message is a predicate whose subject is the defaults list."""


@dataclass
class Entry:
    """An entry of a ``defaults:`` list, in its place in the tree of configurations."""

    group: str | None
    """The config group; None for an entry that is a name alone."""
    value: str | list[str] | None
    """The chosen configuration, or several; for a name alone the name; None if the group has none."""
    package: str | None = None
    """The package that the entry writes behind an @."""
    is_optional: bool = False
    is_override: bool = False
    """Whether it changes an entry of another list, instead of adding a configuration."""
    base: str = ""
    """The group path of the configuration that lists the entry."""
    parent_package: str = ""
    """The package of that configuration."""
    header: str | None = None
    """The package that the named file's header ``# @package`` sets."""
    leaf: Leaf | None = None
    """The place of the list; None for the primary configuration and for entries of the command line."""

    def __post_init__(self) -> None:
        if self.package == "_here_":
            self.package = ""

    @property
    def is_self(self) -> bool:
        """Whether the entry stands for the values of the configuration that lists it."""
        return self.value == SELF

    @property
    def name(self) -> str | None:
        """The name of the configuration in its group; None without a choice. A list has no name."""
        if not isinstance(self.value, str):
            return None
        return self.value if self.group is not None else self.value.rpartition("/")[2]

    @property
    def is_file(self) -> bool:
        """Whether the entry is the path of a file, as in NeMo-RL."""
        return self.group is None and isinstance(self.value, str) and FILE.fullmatch(self.value) is not None

    @property
    def written_group(self) -> str:
        """The group as the entry writes it, without the slash of an absolute one."""
        written = self.group if self.group is not None else str(self.value).rpartition("/")[0]
        return written.removeprefix("/")

    @property
    def group_path(self) -> str:
        """The group from the root of the configurations."""
        written = self.group if self.group is not None else str(self.value)
        if written.startswith("/") or not self.base:
            return self.written_group
        return f"{self.base}/{self.written_group}" if self.written_group else self.base

    @property
    def config_path(self) -> str:
        """The path of the configuration from the root of the configurations, without a suffix."""
        group = self.group_path
        return f"{group}/{self.name}" if group else str(self.name)

    def final_package(self, *, with_header: bool = True) -> str:
        """Return the package that the values go into, from the root. with_header: whether the file's header counts."""
        package = self.header if self.package is None and with_header else self.package
        if package is None:
            package = "" if self.is_file else self.written_group.replace("/", ".")
        package = package.replace("_group_", f"_global_.{self.group_path.replace('/', '.')}")
        joined = ".".join(part for part in (self.parent_package, package) if part)
        _, found, below = joined.rpartition("_global_")
        return below.removeprefix(".") if found else joined

    @property
    def key(self) -> str:
        """The key by which a choice of the group is overridden: group, or group@package."""
        package = self.final_package(with_header=False)
        return (
            self.group_path
            if package == self.group_path.replace("/", ".")
            else f"{self.group_path}@{package or '_global_'}"
        )


def parse_entries(defaults: Leaf) -> Iterator[Entry]:
    """Yield the entries of a ``defaults:`` list: of Hydra, or one path or several as NeMo-RL writes them.

    Raises DefaultsError for an entry that Hydra refuses.
    """
    if isinstance(defaults.value, str):
        yield Entry(None, defaults.value, leaf=defaults)
        return
    if not isinstance(defaults.value, list):
        raise DefaultsError("is no list")
    for item in defaults.value:
        if isinstance(item, str):
            if item:
                name, at, package = item.partition("@")
                yield Entry(None, name, package if at else None, leaf=defaults)
            else:
                raise DefaultsError("has an entry without a name")
        elif isinstance(item, Mapping) and len(item) == 1:
            yield _parse_group(*next(iter(item.items())), defaults)
        else:
            raise DefaultsError(f"has an entry that is neither a name nor one group with its choice: {item}")


def _parse_group(key: str, value: Any, defaults: Leaf) -> Entry:
    """Return the entry for ``group: value``; the key may begin with the words optional and override."""
    written, at, package = key.partition("@")
    *words, group = written.split(" ")
    if not group or (isinstance(value, str) and not value):
        raise DefaultsError("has an entry without a name")
    is_list = isinstance(value, list) and all(isinstance(name, str) and name for name in value)
    if not (is_list or value is None or isinstance(value, str)):
        raise DefaultsError(f"chooses {value} for {group}, and Hydra takes a name or a list of names")
    return Entry(
        group, value, package if at else None, is_optional="optional" in words, is_override="override" in words, leaf=defaults
    )  # fmt: skip


def read_package_header(text: str) -> str | None:
    """Return the package that the first lines of a configuration set: ``# @package a.b``. None without such a line."""
    for line in text.splitlines():
        line = line.strip()
        if not line:
            continue
        match = HEADER.fullmatch(line)
        if match is None:
            return None
        if match[1] == "package":
            # A header is absolute.
            return match[2] if match[2].startswith("_global_") else f"_global_.{match[2]}"
    return None
