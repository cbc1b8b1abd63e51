"""What is known of a framework's keys without its releases: the names that they have had, and those that its code reads nowhere.

A table of names (``key_names.json`` in the framework's folder) knows no releases and no values. It finds slips of the pen where
neither the framework's sources are beside the job nor a table by release (`ckptcheck.jobs.key_table`) is.
``fixtures/learn_key_names.py`` and ``fixtures/learn_unread_keys.py`` (``unread.json``) write the tables from a clone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from difflib import SequenceMatcher
from functools import cache

import msgspec

from ckptcheck.framework_folders import find_framework_data
from ckptcheck.jobs.dated_defaults import Change, DatedDefaults, describe_span, holds_in
from ckptcheck.jobs.document import Document, Leaf
from ckptcheck.jobs.framework import Framework, find_closest_name
from ckptcheck.jobs.job import UnknownKey, UnreadKey

LEAST_LENGTH = 4
"""Names shorter than this are alike by chance."""
MOST_LETTERS = 2
"""Letters in which a slip of the pen differs from what it means; a larger difference is rather another key."""
REFERENCE = re.compile(r"\$\{([\w.]{1,200})")
"""What a value takes from another key: `custom_envs: {A: ${custom_env.A}}` in ROLL's recipes."""


class KeyNames(msgspec.Struct, frozen=True):
    """The names of a framework's keys in all its releases."""

    repository: str
    """The repository on GitHub: owner/name."""
    commit: str
    """The newest commit that was read."""
    date: str
    """The date of that commit."""
    names: Mapping[str, object]
    """Name → the names below it, or None for a value and for a section that takes any key."""


@cache
def load_key_names(name: str) -> KeyNames | None:
    """Return the names of a framework's keys, or None where there is no table of them. name: as in ``--framework``."""
    file = find_framework_data(name, "key_names.json")
    return msgspec.json.decode(file.read_bytes(), type=KeyNames) if file is not None else None


def is_slip(name: str, near: str) -> bool:
    """Return whether a name is another one with a letter or two wrong; other digits make another name (adam_beta1, adam_beta2).

    >>> is_slip("rolout", "rollout"), is_slip("adam_beta1", "adam_beta2"), is_slip("agent_template", "tag_to_template")
    (True, False, False)
    """
    digits = [[letter for letter in each if letter.isdigit()] for each in (name, near)]
    alike = sum(block.size for block in SequenceMatcher(None, name, near).get_matching_blocks())
    return len(name) >= LEAST_LENGTH and max(len(name), len(near)) - alike <= MOST_LETTERS and digits[0] == digits[1]


def find_unknown_part(path: str, names: Mapping[str, object]) -> tuple[str, frozenset[str]] | None:
    """Return (the path up to its first part without a place in the table, the names that stand there); None where it has one."""
    parts = path.split(".")
    level: object = names
    for number, part in enumerate(parts):
        if not isinstance(level, Mapping):
            return None
        if part not in level:
            return ".".join(parts[: number + 1]), frozenset(level)
        level = level[part]
    return None


def _takes_any(path: str, names: Mapping[str, object]) -> bool:
    """Whether a path of the table is a section that takes any key."""
    level: object = names
    for part in path.split("."):
        level = level.get(part) if isinstance(level, Mapping) else None
    return not isinstance(level, Mapping)


def list_unknown_names(document: Document, table: KeyNames, why: str) -> Iterator[UnknownKey]:
    """Yield each part of a key that no release of a framework has, once, with the key that it almost is, or else with `why`.

    why: what is said of a key that resembles none; "" leaves it out, as a program of the user's may read it.
    """
    seen = set()
    used = {key for leaf in document.leaves.values() for key in REFERENCE.findall(str(leaf.value))}
    for path, leaf in document.leaves.items():
        if leaf.is_default or (found := find_unknown_part(path, table.names)) is None or found[0] in seen:
            continue
        section, _, name = found[0].rpartition(".")
        # A key that others refer to is the job's own, and one with an underscore a template.
        if name.startswith("_") or any(f"{key}.".startswith(f"{found[0]}.") for key in used):
            continue
        near = find_closest_name(name, found[1])
        meant = f"{section}.{near}" if section else str(near)
        rest = path[len(found[0]) :]
        # Who writes both of two sections with any keys means both.
        is_other = bool(rest) and any(f"{other}.".startswith(f"{meant}.") for other in document.leaves)
        is_near = near and is_slip(name, near) and not (is_other and _takes_any(meant, table.names))
        seen.add(found[0])
        if is_near or why:
            yield UnknownKey(leaf, near=meant + rest) if is_near else UnknownKey(leaf, why)


def list_refused(overrides: Mapping[str, Leaf], table: KeyNames, title: str, stops: str) -> Iterator[UnknownKey]:
    """Yield each key that no release of a framework has.

    overrides: the keys; Hydra's without ``+``. stops: what stops at it, as the message says it; "" where the job may have
    configurations of its own.
    """
    for path, leaf in overrides.items():
        # A name without a dot may choose a file of a config group.
        if "." in path and find_unknown_part(path, table.names) is not None:
            why = f"no version of {title} to {table.date} has it"
            yield UnknownKey(leaf, f"{why}, and {stops}" if stops else why, refused_by=title if stops else "")


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
    unless: Mapping[str, str] = {}
    """Another key → the value with which a library that the framework starts reads it."""


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


def list_unread_keys(
    document: Document, framework: Framework, defaults: DatedDefaults | None, name: str
) -> list[UnreadKey]:
    """Return the keys that a job sets and that its version of the framework reads nowhere.

    A job with a program of its own has none, as that may read any key. name: of the framework, or of the fork of it.
    """
    table = load_unread_table(name)
    # slime's train.py is known by its flags.
    line = " ".join([document.script, *(leaf.key for leaf in document.leaves.values())])
    is_own = document.script and (framework.launches is None or not framework.launches.search(line))
    if table is None or defaults is None or is_own:
        return []
    found = []
    for path, entry in table.keys.items():
        leaf = document.leaves.get(path)
        if leaf is None or leaf.is_default or leaf.value in SAYS_NOTHING or leaf.value in entry.defaults:
            continue
        if any(
            other in document.leaves and document.leaves[other].value == value for other, value in entry.unless.items()
        ):
            continue
        if not is_read(name, path, defaults):
            found.append(
                UnreadKey(leaf, f"{defaults.table.title}{describe_span(entry.since, None)}", entry.in_examples)
            )
    return found
