"""Combinations of settings that are known to go wrong, by version: ``known_issues.toml`` in a framework's or an engine's folder.

An issue is data: which settings, in which versions, what happens, and who says so. `find_met_issues` holds a job against them,
and one rule (known-issue) reports what it finds. The tests make a broken job and its sound twins of every issue.
"""

from __future__ import annotations

import fnmatch
import operator
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache, partial
from math import prod

import msgspec

from ckptcheck.framework_folders import find_framework_data
from ckptcheck.jobs.dated_defaults import BY_KEYS, FrameworkVersion, holds_in
from ckptcheck.jobs.document import Document, Leaf
from ckptcheck.jobs.engine_flags import NEWEST, TITLES
from ckptcheck.jobs.fields import FIELDS
from ckptcheck.jobs.framework import coerce, find_closest_name
from ckptcheck.jobs.interpolation import ResolvedValue, resolve
from ckptcheck.jobs.issue import Issue, IssueTable, MetIssue, Wanted
from ckptcheck.jobs.job import Job, Setting, UnknownKey, shown

OTHERS = "*"
"""Stands among the values of a key that takes others too."""
CLOSE, DIGITS = 0.8, re.compile(r"\d")
"""Least likeness of a misspelt value (difflib)."""
UNWRITTEN = "unwritten"
"""The value that stands for a key which the job does not write."""
COMPARISON = re.compile(r"(<=|>=|<|>|!=)\s*(\S.*)")
COMPARE = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}


@cache
def load_issue_table(name: str) -> IssueTable:
    """Return the issues of a framework or an engine, and the values of its keys. name: as in ``--framework``."""
    file = find_framework_data(name, "known_issues.toml")
    return msgspec.convert(tomllib.loads(file.read_text(encoding="utf-8")), IssueTable) if file else IssueTable(())


def load_issues(name: str) -> tuple[Issue, ...]:
    """Return the issues of a framework or an engine. name: as in ``--framework``."""
    return load_issue_table(name).issue


def list_wrong_values(job: Job, document: Document, framework: str) -> list[UnknownKey]:
    """Return the keys of a job that have a value which no release of its framework or engine takes.

    framework: as in `find_met_issues`.
    """
    sides: list[tuple[str, Mapping[str, tuple[str, ...]], Callable[[str], ResolvedValue | None]]] = []
    if framework != job.engine:
        sides.append((job.framework, load_issue_table(framework).values, partial(resolve, document)))
    if (title := TITLES.get(job.engine)) is not None:
        sides.append((title, load_issue_table(job.engine).values, job.engine_arguments.get))
    wrong = []
    for program, values, find_key in sides:
        for key, known in values.items():
            found = find_key(key)
            if found is None or found.reason or found.leaf.is_default or not isinstance(found.value, str):
                continue
            written, named = found.value, tuple(value for value in known if value != OTHERS)
            if not written or written.lower() in {"none", "null", *(value.lower() for value in named)}:
                continue
            swapped = [value for value in named if sorted(value) == sorted(written)]
            near = swapped[0] if swapped else find_closest_name(written, frozenset(named), CLOSE)
            # fp4 is another format than fp8.
            near = near if DIGITS.findall(near) == DIGITS.findall(written) else ""
            stops = program if len(named) == len(known) else ""
            if near or stops:
                wrong.append(UnknownKey(found.leaf, near=near, refused_by=stops, values=named))
    return wrong


def find_met_issues(job: Job, document: Document, framework: str) -> list[MetIssue]:
    """Return the issues of a job's framework and engine whose settings it has, in a version that has them or may have.

    framework: the name of the framework, or of the fork of it, that has a table.
    """

    def find_key(key: str) -> ResolvedValue | None:
        if key.startswith("$"):
            leaf = document.environment.get(key[1:])
            return None if leaf is None else ResolvedValue(leaf.value, leaf, leaf.reason)
        return resolve(document, key)

    version = job.defaults.version if job.defaults is not None else FrameworkVersion()
    newest = job.defaults.table.newest_release if job.defaults is not None else ""
    own_files = job.defaults.table.version_files if job.defaults is not None else ()
    met = [
        _meet(job, issue, find_key, job.framework, version, newest, "framework", own_files)
        for issue in (load_issues(framework) if framework != job.engine else ())
    ]
    engine = TITLES.get(job.engine)
    if engine:
        own = FrameworkVersion(job.engine_version)
        arguments = job.engine_arguments
        met += [
            _meet(job, issue, arguments.get, engine, own, NEWEST[job.engine], "engine")
            for issue in load_issues(job.engine)
        ]
    found = [each for each in met if each is not None]
    # What is too large divides nothing either.
    too_large = [each.issue.part for each in found if each.issue.fits == "at most"]
    causes: set[str] = set()
    met_first: list[MetIssue] = []
    for each in found:
        issue, is_divided = each.issue, each.issue.fits == "a divisor"
        # A size that has to change need not be divided as it is.
        if is_divided and (issue.part in too_large or not causes.isdisjoint(issue.whole)):
            continue
        met_first.append(each)
        if len(issue.part) == 1 and not each.unsure and (is_divided or issue.fits == "at most"):
            causes.update(issue.part)
    return met_first


def _meet(
    job: Job, issue: Issue, find_key: Callable[[str], ResolvedValue | None], program: str, version: FrameworkVersion,
    newest: str, side: str, own_files: tuple[str, ...] = (),
) -> MetIssue | None:  # fmt: skip
    """Return the issue if the job has its settings and may have its version; None where it does not.

    Args:
        job: The job.
        issue: The issue.
        find_key: Returns the value that the job writes for a key of the program; None for none.
        program: The framework or engine, as reports name it.
        version: The job's version of it.
        newest: The newest release that is known.
        side: framework or engine, for the option that gives the version.
        own_files: Files of the program's own checkout that hold its version.
    """
    described: list[str] = []
    reasons: list[str] = []
    leaves: list[Leaf] = []
    for name, wanted in issue.when.items():
        setting = _find_setting(job, name, find_key)
        if setting.status == "unresolved":
            reasons.append(f"{setting.leaf.key if setting.leaf else name} is not resolved: {setting.source}")
            continue
        if setting.status == "unknown" and (name in FIELDS or job.is_incomplete or _is_misspelt(name, job)):
            # A misspelt key is a finding of its own.
            if not job.is_incomplete or name in FIELDS or UNWRITTEN not in _list_wanted(wanted):
                return None
            reasons.append(f"a file that ckptcheck could not read may set {name}")
            continue
        if not matches(setting.value, wanted):
            return None
        leaves += [setting.leaf] if setting.leaf is not None else []
        # What is off only does not stand in the way.
        if setting.is_known and (setting.value or UNWRITTEN not in _list_wanted(wanted)):
            described.append(f"{_name(setting, name)} {shown(setting.value)} ({setting.place})")
    if issue.part:
        sizes = _compare_sizes(job, issue, find_key, reasons)
        if sizes is None:
            return None
        described, leaves = [*sizes[0], *described], [*sizes[1], *leaves]
    begin, end = issue.span
    holds = holds_in(version, begin, end, newest)
    is_known = version.is_known and version.place != BY_KEYS
    if version.is_latest and not (holds and begin is None):
        is_known = False
    # The checkout of a commit after the newest release still has that release's number.
    is_of_checkout = version.place.partition(":")[0] in own_files and end is not None
    # An unknown version is taken for the newest; an engine's is rather the one that its framework pins.
    if not is_known and (end is not None or (side == "engine" and begin is not None)):
        reasons.append(f"no file names the version of {program}; --{side}-version gives it")
    elif holds is False:
        return None
    elif holds is None or is_of_checkout:
        reasons.append(f"{program} {version.text} may be before or after {end.commit if end else 'it'}")
    first = next((leaf for leaf in leaves if not leaf.is_default), leaves[0] if leaves else None)
    met = MetIssue(issue, program, " and ".join(dict.fromkeys(described)), first)
    return replace(met, unsure="; ".join(reasons))


def _compare_sizes(
    job: Job, issue: Issue, find_key: Callable[[str], ResolvedValue | None], reasons: list[str]
) -> tuple[list[str], list[Leaf]] | None:
    """Return an issue's sizes with their places, and the leaves that write them, if they do not fit.

    None where they do, where one is not known, and where the job writes none. reasons: gets why one is not resolved.
    """
    described: list[str] = []
    leaves: list[Leaf] = []
    products: list[int | float] = []
    are_shares = issue.fits == "shares"
    for sizes in (issue.part, issue.whole, issue.among):
        numbers: list[int | float] = []
        for name, default in sizes.items():
            setting = _find_setting(job, name, find_key)
            if setting.status == "unresolved":
                reasons.append(f"{setting.leaf.key if setting.leaf else name} is not resolved: {setting.source}")
                return described, [*leaves, *([setting.leaf] if setting.leaf else ())]
            size = coerce(setting.value, "number") if setting.is_known else default
            if isinstance(size, float) and size.is_integer():
                size = int(size)
            kinds = (int, float) if are_shares else int
            if not isinstance(size, kinds) or size <= 0 or (are_shares and size > 1):
                return None
            numbers.append(size)
            if setting.leaf is not None:
                leaves.append(setting.leaf)
                described.append(f"{_name(setting, name)} {size} ({setting.place})")
            elif size != 1 or are_shares:
                described.append(f"{name} {size} ({setting.place if setting.is_known else 'default'})")
        is_sum = issue.fits in ("sum at most", "shares") and sizes is issue.part
        # 0.7 + 0.2 + 0.1 is more than 1 by rounding.
        products.append(round(sum(numbers), 6) if is_sum else prod(numbers))
    part, whole, ranks = products
    whole //= ranks
    fit = {
        "a divisor": whole % part == 0,
        "a divisor of more": whole <= part or whole % part == 0,
        "equal": part == whole,
    }.get(issue.fits, part <= whole)
    return None if fit or not leaves else (described, leaves)


def _name(setting: Setting, name: str) -> str:
    """Return the key that the job writes, or the name of the setting where it is computed from several."""
    if setting.leaf is None or (
        name.endswith((".world", "engine.tp", "engine.pp")) and setting.leaf.value != setting.value
    ):
        return name
    return setting.leaf.key.lstrip("-")


def _is_misspelt(name: str, job: Job) -> bool:
    """Return whether the job writes a key that is almost this one."""
    near = {unknown_key.near.lstrip("-").replace("-", "_") for unknown_key in job.unknown_keys}
    return any(key in near for key in name.split("|"))


def _find_setting(job: Job, name: str, find_key: Callable[[str], ResolvedValue | None]) -> Setting:
    """Return the setting of a name in an issue; its status is unknown where the job does not write it."""
    if name in FIELDS:
        return job[name]
    for key in name.split("|"):
        found = find_key(key)
        if found is not None and found.reason:
            return Setting(None, "unresolved", found.reason, found.leaf)
        if found is not None and found.value is not None:
            return Setting(found.value, "set", "", found.leaf)
    return Setting()


def _list_wanted(wanted: Wanted | tuple[Wanted, ...]) -> tuple[Wanted, ...]:
    return wanted if isinstance(wanted, tuple) else (wanted,)


def matches(value: object, wanted: Wanted | tuple[Wanted, ...]) -> bool:
    """Return whether a value is one with which an issue comes. value: None where the job does not write it.

    >>> matches(True, True), matches(4, "> 1"), matches("fsdp2", ("fsdp", "fsdp*")), matches(None, "unwritten")
    (True, True, True, True)
    """
    return any(_matches_one(value, each) for each in _list_wanted(wanted))


def _matches_one(value: object, wanted: Wanted) -> bool:
    if value is None or wanted == UNWRITTEN:
        return value is None and wanted == UNWRITTEN
    if isinstance(wanted, bool):
        return coerce(value, "flag") is wanted
    if isinstance(wanted, (int, float)):
        return coerce(value, "number") == wanted
    if isinstance(value, (list, tuple)):
        return any(_matches_one(item, wanted) for item in value)
    written = str(value).lower()
    if comparison := COMPARISON.fullmatch(wanted):
        sign, other = comparison.groups()
        if sign == "!=":
            return written != other
        number = coerce(value, "number")
        return isinstance(number, (int, float)) and bool(COMPARE[sign](number, float(other)))
    return fnmatch.fnmatchcase(written, wanted.lower())
