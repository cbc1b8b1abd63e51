"""The keys that a framework's code reads nowhere (``unread.json`` in its folder), and those of them that a job sets.

``fixtures/learn_unread_keys.py`` writes the table from a clone.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

import msgspec

from ckptcheck.framework_folders import find_framework_data
from ckptcheck.jobs.dated_defaults import Change, DatedDefaults, describe_span, holds_in
from ckptcheck.jobs.document import Document
from ckptcheck.jobs.framework import Framework
from ckptcheck.jobs.job import UnreadKey

SAYS_NOTHING: tuple[object, ...] = (None, False, "", {}, [])
"""Values that ask for nothing, so that it is no loss if nothing reads them."""


class Entry(msgspec.Struct, frozen=True):
    """A key that no code reads."""

    since: Change
    """The first release, or commit, from which on nothing reads it."""
    defaults: tuple[object, ...]
    """The values that the framework's own configurations give it."""
    in_examples: bool
    """Whether the framework's examples set it."""


class UnreadTable(msgspec.Struct, frozen=True):
    """The keys that a framework's code reads nowhere."""

    repository: str
    """The repository on GitHub: owner/name."""
    commit: str
    """The newest commit that was read."""
    date: str
    """The date of that commit."""
    keys: Mapping[str, Entry]
    """Dotted path → when nothing reads it."""


@cache
def load_unread_table(name: str) -> UnreadTable | None:
    """Return the table of a framework, or None where there is none. name: as in ``--framework``."""
    file = find_framework_data(name, "unread.json")
    return msgspec.json.decode(file.read_bytes(), type=UnreadTable) if file is not None else None


def is_read(name: str, path: str, defaults: DatedDefaults | None) -> bool:
    """Return whether a framework's code reads a key in the version that a job runs with. name: as in ``--framework``."""
    table = load_unread_table(name)
    entry = table.keys.get(path) if table is not None else None
    return (
        entry is None
        or defaults is None
        or not holds_in(defaults.version, entry.since, None, defaults.table.newest_release)
    )


def list_unread_keys(document: Document, framework: Framework, defaults: DatedDefaults | None) -> list[UnreadKey]:
    """Return the keys that a job sets and that its version of the framework reads nowhere.

    A job with a program of its own has none, as that may read any key.
    """
    table = load_unread_table(framework.name)
    is_own = document.script and (framework.launches is None or not framework.launches.search(document.script))
    if table is None or defaults is None or is_own:
        return []
    found = []
    for path, entry in table.keys.items():
        leaf = document.leaves.get(path)
        if leaf is None or leaf.is_default or leaf.value in SAYS_NOTHING or leaf.value in entry.defaults:
            continue
        if not is_read(framework.name, path, defaults):
            found.append(
                UnreadKey(leaf, f"{defaults.table.title}{describe_span(entry.since, None)}", entry.in_examples)
            )
    return found
