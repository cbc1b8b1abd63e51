"""The keys and defaults of a framework's configuration, release by release.

The tables are JSON files beside the readers; ``fixtures/learn_framework_keys.py`` writes them from the framework's sources.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from ckptcheck.jobs.dated_defaults import BY_KEYS, FrameworkVersion
from ckptcheck.jobs.document import Document
from ckptcheck.jobs.framework import FieldSource, find_closest_name, read_setting
from ckptcheck.jobs.job import Job, UnknownKey


@dataclass(frozen=True)
class Key:
    """What one release has at a path."""

    default: object = None
    """The default; None too where it is None, computed, or a section."""
    is_open: bool = False
    """Whether the key holds a mapping with any keys."""


@dataclass(frozen=True)
class KeyTable:
    """The configuration of a framework in its releases, oldest first."""

    repository: str
    """The repository on GitHub: owner/name."""
    releases: tuple[tuple[str, str, str], ...]
    """(name of the release, commit, date) of each; the newest commit has no name."""
    roots: tuple[str, ...]
    """The section at the top of each release's configuration; "" where the release has none."""
    sections: Mapping[str, Mapping[str, list[tuple[int, int, object]]]]
    """Section → key → (first release, last release, default), where the releases are numbers in `releases`."""

    @property
    def newest(self) -> int:
        """The number of the newest commit."""
        return len(self.releases) - 1

    def describe(self, release: int) -> str:
        """Write a release: ``skyrl-v0.3.0``; the newest commit with its date: ``a9564572e (2026-08-21)``."""
        name, commit, date = self.releases[release]
        return name or f"{commit} ({date})"

    def _entry(self, section: str, name: str, release: int) -> object:
        """Return what a release has for a key of a section: its default, or a dict that describes it; the table for no key."""
        spans = self.sections.get(section, {}).get(name, [])
        return next((value for first, last, value in spans if first <= release <= last), self)

    def find(self, path: str, release: int) -> Key | None:
        """Return what a release has at a dotted path, or None where it does not have the key."""
        section = self.roots[release]
        given: dict[str, object] = {}
        *sections, name = path.split(".")
        for part in sections:
            entry = self._entry(section, part, release)
            if not isinstance(entry, dict):
                return None
            if "section" not in entry:
                return Key(is_open=True) if entry.get("open") else None
            section, given = str(entry["section"]), dict(entry.get("with", {}))
        entry = self._entry(section, name, release)
        if entry is self:
            return None
        if not isinstance(entry, dict):
            return Key(given.get(name, entry))
        if "section" in entry or entry.get("open"):
            return Key(is_open="section" not in entry)
        return Key(given.get(name))

    def has(self, path: str) -> bool:
        """Return whether any release has a key at a dotted path."""
        return any(self.find(path, number) is not None for number in range(len(self.releases)))

    def version(self, release: int) -> tuple[int, ...]:
        """Return the numbers of a release's name: v0.27.2 → (0, 27, 2); () for a commit without a name."""
        return tuple(int(part) for part in re.findall(r"\d+", self.releases[release][0]))

    def find_release(self, version: str) -> int:
        """Return the newest release that is not newer than a version; the oldest one where all are newer."""
        wanted = tuple(int(part) for part in re.findall(r"\d+", version)[:3])
        numbers = [number for number in range(len(self.releases)) if () < self.version(number) <= wanted]
        return numbers[-1] if numbers else 0

    def pick_release(self, job: Job, document: Document, ignored: frozenset[str] = frozenset()) -> tuple[int, int]:
        """Return (the release whose keys and defaults hold, the release whose behaviour does).

        Both are the release that the job names. If it names none, the first is the newest that knows the most of the job's keys,
        and the second is the newest of all, so that no rule reports a fault of an old release that the job may not have.

        Args:
            job: The job, whose dated defaults know the version that it names.
            document: The configuration.
            ignored: Keys that say nothing of the release.
        """
        version = job.defaults.version if job.defaults is not None else FrameworkVersion()
        if version.date is not None:
            older = [number for number, entry in enumerate(self.releases) if entry[2] <= version.date.isoformat()]
            return (max(older, default=0),) * 2
        if version.is_known:
            return (self.find_release(version.text),) * 2
        return self.choose_release([path for path in document.leaves if path not in ignored]), self.newest

    def date_job(self, job: Job, paths: Iterable[str]) -> int:
        """Return the release whose keys and defaults the reader uses: of the version that the job names, or by the job's keys.

        The keys win over a version that a file names if another release knows more of them, and never over the user's own word. If
        they belong to an older release, the job gets the dated defaults of that release's date.
        """
        names = list(paths)
        by_keys = self.choose_release(names)
        defaults = job.defaults
        if defaults is None:
            return by_keys
        if defaults.version.is_known:
            date = defaults.version.date
            older = [number for number, entry in enumerate(self.releases) if date and entry[2] <= date.isoformat()]
            number = (max(older, default=0)) if date else self.find_release(defaults.version.text)
            known, most = (sum(self.find(name, each) is not None for name in names) for each in (number, by_keys))
            if not defaults.version.place or known >= most:
                return number
        if by_keys != self.newest:
            job.defaults = replace(defaults, version=FrameworkVersion(self.releases[by_keys][2], BY_KEYS))
        return by_keys

    def list_releases(self, path: str) -> list[int]:
        """Return the numbers of the releases that have a key."""
        return [number for number in range(len(self.releases)) if self.find(path, number) is not None]

    def choose_release(self, paths: Iterable[str]) -> int:
        """Return the newest release that knows the most of a job's keys."""
        names = list(paths)
        known = [sum(self.find(path, number) is not None for path in names) for number in range(len(self.releases))]
        return max(range(len(known)), key=lambda number: (known[number], number))

    def list_unknown_keys(
        self, document: Document, release: int, sections: Iterable[str], refused_by: str = ""
    ) -> list[UnknownKey]:
        """Return the keys of a document, below these sections, that a release does not have.

        refused_by: the framework, where it stops at such a key.
        """
        unknown = []
        for path, leaf in document.leaves.items():
            if path.partition(".")[0] not in sections or self.find(path, release) is not None:
                continue
            if others := self.list_releases(path):
                unknown.append(
                    UnknownKey(
                        leaf, f"a key of {self.describe(others[-1])}, which {self.describe(release)} does not have"
                    )
                )
                continue
            parent, _, name = path.rpartition(".")
            near = find_closest_name(name, self.names_below(parent, release))
            # A slip of the pen changes a letter or two; a longer difference is rather a key of another version.
            is_slip = abs(len(near) - len(name)) <= 2
            # At the top a class of the user's may have keys of its own.
            stops = refused_by if parent or is_slip else ""
            why = (
                f"no version to {self.releases[-1][2]} has it, and {refused_by} stops at it"
                if stops and not near
                else ""
            )
            meant = f"{parent}.{near}" if near and parent else near
            unknown.append(UnknownKey(leaf, why, meant, refused_by=stops if is_slip or not near else ""))
        return unknown

    def list_unknown_flags(
        self, document: Document, release: int, others: frozenset[str], refused_by: str = ""
    ) -> list[UnknownKey]:
        """Return the flags of a command line that neither a release has nor the programs around it.

        others: theirs. refused_by: the framework, where it stops at such a flag.
        """
        unknown: list[UnknownKey] = []
        for path, leaf in document.leaves.items():
            key = path.partition(".")[0]
            if key in others or self.find(key, release) is not None:
                continue
            known_in = self.list_releases(key)
            why = f"{self.describe(release)} has no such key; {self.describe(known_in[-1])} had it" if known_in else ""
            near = "" if known_in else find_closest_name(key, self.names_below("", release) | others)
            if (unknown_key := UnknownKey(leaf, why, near, refused_by=refused_by if near else "")) not in unknown:
                unknown.append(unknown_key)
        return unknown

    def names_below(self, path: str, release: int) -> frozenset[str]:
        """Return the keys that a release has in a section; none for a key that is no section."""
        section = self.roots[release]
        for part in path.split(".") if path else ():
            entry = self._entry(section, part, release)
            if not isinstance(entry, dict) or "section" not in entry:
                return frozenset()
            section = str(entry["section"])
        return frozenset(
            key for key in self.sections.get(section, {}) if self._entry(section, key, release) is not self
        )


@cache
def load_key_table(file: Path) -> KeyTable:
    """Read the table of a reader. file: the JSON file in the framework's folder that the learner of keys wrote."""
    table = json.loads(file.read_text(encoding="utf-8"))
    releases = tuple((entry["release"], entry["commit"], entry["date"]) for entry in table["releases"])
    return KeyTable(table["repository"], releases, tuple(table["roots"]), table["sections"])


def set_from_table(
    job: Job, document: Document, name: str, source: FieldSource, table: KeyTable, release: int, of: str
) -> None:
    """Set a field from the first of its paths that the job writes, or else from the release's default.

    Args:
        job: The job to change.
        document: The configuration.
        name: The field in `FIELDS`.
        source: Its paths. The default is that of the first path which the release has.
        table: The framework's keys.
        release: The number of the release.
        of: Whose default it is, for the report.
    """
    keys = [key for path in source.paths if (key := table.find(path, release)) is not None]
    default = next((key.default for key in keys if key.default is not None), None)
    if default is not None and source.read is not None:
        default = source.read(default)
    job.settings[name] = read_setting(job, document, name, replace(source, default=default, of=of))
