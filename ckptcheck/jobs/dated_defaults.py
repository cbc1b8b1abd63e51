"""The defaults of a training framework by version: ``defaults.toml`` in its folder of frameworks/.

A row says which value a framework takes where a job does not write one, since which release and commit, and until which. The tests
compare the tables with the newest package of the framework.
"""

from __future__ import annotations

import datetime
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import msgspec

from ckptcheck.framework_folders import find_framework_data

BY_KEYS = "by its keys"
"""The place of a version that is guessed by the keys of a job."""


class Change(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The moment at which a default changed on the framework's main branch."""

    date: datetime.date
    """The date of the commit."""
    commit: str
    """The commit, abbreviated."""
    release: str = ""
    """The first release that contains the commit; "" for an unreleased commit."""


class Row(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One default of a framework, in one span of its versions."""

    field: str
    """The setting's name in `FIELDS`."""
    value: bool | int | float | str
    """The default in the terms of that field."""
    source: str
    """The file of the framework that sets the default."""
    key: str = ""
    """The framework's key that replaces the default; "" where no key does."""
    of: str = ""
    """Whose default it is, for the report; "" for the framework's."""
    backend: str = ""
    """The training backend for which the row holds; "" for all."""
    entry: str = ""
    """A part of the launched module's or configuration's name for which the row holds; "" for all. It counts before one for all."""
    since: Change | None = None
    """When the default became this value; None for as long as is known."""
    until: Change | None = None
    """When the default became another value; None where it is the newest."""


class Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The defaults of one framework, and what its versions are called."""

    title: str
    """The framework's name in reports."""
    packages: tuple[str, ...]
    """Its names in requirements and lock files."""
    repositories: tuple[str, ...]
    """Its repositories, ``owner/name``, the present one first."""
    read_at: str
    """The newest commit that was read."""
    read_on: datetime.date
    """The date of that commit."""
    default: tuple[Row, ...]
    """The defaults."""
    images: tuple[str, ...] = ()
    """Container images whose tag is a version."""
    version_files: tuple[str, ...] = ()
    """Files of a checkout that hold its version."""
    newest_release: str = ""
    """The newest release that was read."""


@dataclass(frozen=True)
class Default:
    """The value that a framework takes where a job does not write one."""

    value: bool | int | float | str | None
    """The value; None where `reason` is not empty."""
    owner: str = ""
    """Whose default it is, and since or until when: ``verl since 0.9.0``."""
    reason: str = ""
    """Why the version does not determine the value; "" where it does."""


@dataclass(frozen=True)
class FrameworkVersion:
    """Which version of its framework a job runs with."""

    text: str = ""
    """A release (0.7.1, 0.8.0.dev), a date (2026-06-05) or a commit; "" where nothing names one."""
    place: str = ""
    """Where it is written: ``requirements.txt:3``; "" for the user's own word."""
    is_latest: bool = False
    """Whether it is only the latest version that the job can have, by a key that later ones lack."""

    @property
    def date(self) -> datetime.date | None:
        """The date, where the version is one."""
        if not re.fullmatch(r"20\d\d-\d\d-\d\d", self.text):
            return None
        try:
            return datetime.date.fromisoformat(self.text)
        except ValueError:
            return None

    @property
    def release(self) -> tuple[int, ...]:
        """The numbers of a release: 0.7.1 → (0, 7, 1); empty for a date or a commit."""
        match = re.match(r"v?(\d+(?:\.\d+)+)", self.text)
        return _numbers(match[1]) if match and self.date is None else ()

    @property
    def is_between_releases(self) -> bool:
        """Whether it is a development version, of some moment before the release that its number names."""
        return bool(self.release) and "dev" in self.text

    @property
    def is_known(self) -> bool:
        """Whether it says which defaults hold; a commit does so only where the table names it."""
        return bool(self.release or self.date)


@cache
def load_table(name: str) -> Table | None:
    """Return the table of a framework, or None where there is none. name: as in ``--framework``."""
    file = find_framework_data(name, "defaults.toml")
    return msgspec.convert(tomllib.loads(file.read_text(encoding="utf-8")), Table) if file is not None else None


@dataclass(frozen=True)
class DatedDefaults:
    """The defaults of the version that a job runs with."""

    table: Table
    """The framework's table."""
    version: FrameworkVersion
    """The job's version of it; the newest version that was read holds where it is not known."""
    script: str = ""
    """The module or program that the job launches, and the names of its files."""

    def find(self, name: str, backend: str = "") -> Default | None:
        """Return the default of a field, or None where the table has none. name: in `FIELDS`; backend: what trains."""
        rows = [
            row
            for row in self.table.default
            if row.field == name and row.backend in ("", backend) and (not row.entry or row.entry in self.script)
        ]
        rows = [row for row in rows if row.entry] or rows
        newest = self.table.newest_release
        answers = [(row, holds_in(self.version, row.since, row.until, newest)) for row in rows]
        if certain := next((row for row, answer in answers if answer is True), None):
            return Default(
                certain.value, f"{certain.of or self.table.title}{describe_span(certain.since, certain.until)}"
            )
        if any(answer is None for _, answer in answers):
            values = " or ".join(str(row.value).lower() for row, answer in answers if answer is None)
            return Default(
                None,
                reason=f"{self.table.title} {self.version.text} is a version between two of its defaults: {values}",
            )
        return None


def holds_in(version: FrameworkVersion, since: Change | None, until: Change | None, newest_release: str) -> bool | None:
    """Return whether a version lies in a span of versions; None where it does not say. An unknown one is the newest.

    newest_release: the newest release that the table knows.
    """
    begun = True if since is None else _is_after(version, since, newest_release)
    ended = False if until is None else _is_after(version, until, newest_release)
    if begun is False or ended is True:
        return False
    return None if begun is None or ended is None else True


def _is_after(version: FrameworkVersion, change: Change, newest_release: str) -> bool | None:
    """Return whether a version has a change; None where it does not say."""
    if version.date is not None:
        return version.date >= change.date
    if version.text and change.commit.startswith(version.text[:7]) and not version.release:
        return True
    if not version.release:
        return True
    if not change.release:
        newest = _numbers(newest_release)
        return None if version.is_between_releases and version.release > newest else version.release > newest
    first = _numbers(change.release)
    if version.is_between_releases and version.release == first:
        return None
    return version.release >= first


def date_by_removed_keys(table: Table, places: Mapping[str, str]) -> FrameworkVersion:
    """Return a version before the framework lost a key that the job writes; an unknown one where it writes none such.

    places: key → where the job writes it.
    """
    present = {row.key for row in table.default if row.until is None}
    lost = [
        (row.until.date, row.key)
        for row in table.default
        if row.until is not None and row.key in places and row.key not in present
    ]
    if not lost:
        return FrameworkVersion()
    date, key = min(lost)
    return FrameworkVersion((date - datetime.timedelta(days=1)).isoformat(), f"{places[key]} has {key}", is_latest=True)


def _numbers(release: str) -> tuple[int, ...]:
    """Return the numbers of a release, at least three: 0.9 → (0, 9, 0)."""
    numbers = [int(part[:9]) for part in re.findall(r"\d+", release)]
    return tuple(numbers + [0] * (3 - len(numbers)))


def describe_span(since: Change | None, until: Change | None) -> str:
    """Write a span of versions for the report: `` since 0.9.0``, `` before 2026-06-05``; "" where nothing ends it."""

    def name(change: Change) -> str:
        return change.release or change.date.isoformat()

    if since and until:
        return f" from {name(since)} to {name(until)}"
    if since:
        return f" since {name(since)}"
    return f" before {name(until)}" if until else ""


def describe_version(defaults: DatedDefaults) -> str:
    """Say in one phrase which version's defaults hold: ``verl 0.7.1 (requirements.txt:3)``."""
    version, table = defaults.version, defaults.table
    if version.is_known:
        text = f"of {version.text} or earlier" if version.is_latest else version.text
        return f"{table.title} {text}" + (f" ({version.place})" if version.place else "")
    named = (
        f"commit {version.text} ({version.place}) is not in ckptcheck's table"
        if version.text
        else "no file names its version"
    )
    return f"{table.title} of {table.read_on.isoformat()}, assumed: {named}"
