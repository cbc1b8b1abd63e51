"""Reads the settings of a team: ``ckptcheck.toml``, or ``[tool.ckptcheck]`` in pyproject.toml.

The search goes from the working directory upwards, unless that is the folder of what is checked, or lies in it: settings that
came with a download could hide what is wrong with it. Nor does it take a file that another user may have left there.
"""

from __future__ import annotations

import difflib
import os
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, get_args

import msgspec

from ckptcheck.errors import CkptcheckError
from ckptcheck.linter.report import FailOn
from ckptcheck.linter.rule import SEVERITIES, Rule, Severity
from ckptcheck.linter.selection import match_rules
from ckptcheck.text.file_io import expand_home, real_path
from ckptcheck.text.toml_text import read_toml_file

Choice = TypeVar("Choice", bound=str)
FAIL_ON: tuple[FailOn, ...] = get_args(FailOn)


class SettingsTable(msgspec.Struct, forbid_unknown_fields=True, rename="kebab"):
    """The settings as they are written in TOML."""

    select: list[str] = []
    """Codes of rules, beginnings of codes, or names; empty for all rules."""
    ignore: dict[str, str] = {}
    """Code, beginning of a code, or name → why the rule is not run."""
    severity: dict[str, str] = {}
    """Code, beginning of a code, or name → the severity in place of the rule's own."""
    fail_on: str = "error"
    """The least severity that makes the exit code 1."""
    rules: list[str] = []
    """Folders with further rules, relative to the file."""
    verbs: dict[str, Any] = {}
    """Setting of all verbs → value, and verb → its own settings; the verbs check them."""


FORMS = {
    "select": "a list of strings",
    "ignore": "a table of strings",
    "severity": "a table of strings",
    "fail-on": "a string",
    "rules": "a list of strings",
    "verbs": "a table",
}
"""Setting → what it has to be."""


class Settings(msgspec.Struct, frozen=True):
    """The settings of a team, checked."""

    select: tuple[str, ...] = ()
    """Codes of rules, beginnings of codes, or names; empty for all rules."""
    ignored: Mapping[str, str] = msgspec.field(default_factory=dict)
    """Pattern as in `select` → why the rule is not run."""
    severities: Mapping[str, Severity] = msgspec.field(default_factory=dict)
    """Pattern as in `select` → the severity in place of the rule's own."""
    fail_on: FailOn = "error"
    """The least severity that makes the exit code 1."""
    rule_folders: tuple[Path, ...] = ()
    """Folders with further rules."""
    verbs: Mapping[str, Any] = msgspec.field(default_factory=dict)
    """Setting of all verbs → value, and verb → its own settings, as they are written."""
    file: Path | None = None
    """The file that the settings were read from, or None."""
    passed_over: Path | None = None
    """The file that is nearest and does not count, because it may have come with a target; None where there is none."""

    def ignored_codes(self, rules: Sequence[Rule]) -> dict[str, str]:
        """Return code → reason. Raises CkptcheckError for a pattern that names no rule."""
        return {rule.code: reason for pattern, reason in self.ignored.items() for rule in match_rules(rules, pattern)}

    def severity_codes(self, rules: Sequence[Rule]) -> dict[str, Severity]:
        """Return code → severity; a longer pattern wins over a shorter. Raises CkptcheckError as above."""
        patterns = sorted(self.severities, key=len)
        return {rule.code: self.severities[pattern] for pattern in patterns for rule in match_rules(rules, pattern)}


def find_settings(start: Path, targets: Sequence[Path] = ()) -> Settings:
    """Return the nearest settings from `start` upwards; none where `start` is the folder of a target, or lies in one.

    targets: folders of what is checked. Raises CkptcheckError if the file found is malformed, or is another user's in a
    world-writable folder.
    """
    here = real_path(start)
    is_in_target = any(here.is_relative_to(real_path(target)) for target in targets)
    for folder in (start, *start.parents):
        for path in (folder / "ckptcheck.toml", folder / "pyproject.toml"):
            if not path.is_file() or (path.name == "pyproject.toml" and not _has_settings(path, is_in_target)):
                continue
            if is_in_target:
                return Settings(passed_over=path)
            _require_trusted(path)
            return load_settings(path)
    return Settings()


def _has_settings(path: Path, may_be_malformed: bool) -> bool:
    """Whether a pyproject.toml has a table of ckptcheck. Raises CkptcheckError for a malformed one, unless it may be one."""
    try:
        tools = read_toml_file(path).get("tool")
    except CkptcheckError:
        if may_be_malformed:
            return False
        raise
    return isinstance(tools, dict) and "ckptcheck" in tools


def _require_trusted(path: Path) -> None:
    """Raise CkptcheckError for a file of another user in a world-writable folder, such as /tmp.

    A user who works below such a folder did not ask for that file. A colleague's file in a folder of the team is trusted.
    """
    if not hasattr(os, "getuid"):  # Windows
        return
    is_foreign = path.stat().st_uid not in (0, os.getuid())
    if is_foreign and path.parent.stat().st_mode & stat.S_IWOTH:
        raise CkptcheckError(
            f"{path} belongs to another user, in a folder that everybody may write to, and was not read",
            hint=f"--config {path} uses it all the same; work in another folder to be without it",
        )


def load_settings(path: Path) -> Settings:
    """Read settings from a ckptcheck.toml or a pyproject.toml. Raises CkptcheckError when they are malformed."""
    document = read_toml_file(path)
    if path.name == "pyproject.toml":
        tools = document.get("tool", {})
        document = tools.get("ckptcheck", {}) if isinstance(tools, dict) else {}
    table = _convert(path, document)
    for code, reason in table.ignore.items():
        if not reason.strip():
            raise CkptcheckError(f"{path}: ignore.{code} gives no reason", hint=f'write why: {code} = "…"')
    return Settings(
        select=tuple(table.select),
        ignored=table.ignore,
        severities={
            code: _require_choice(path, f"severity.{code}", severity, SEVERITIES)
            for code, severity in table.severity.items()
        },
        fail_on=_require_choice(path, "fail-on", table.fail_on, FAIL_ON),
        rule_folders=tuple((path.parent / Path(expand_home(name))) for name in table.rules),
        verbs=table.verbs,
        file=path,
    )


def _convert(path: Path, document: object) -> SettingsTable:
    """Check the form of the settings. Raises CkptcheckError for the first one that is not what it has to be."""
    if not isinstance(document, dict):
        raise CkptcheckError(f"{path}: tool.ckptcheck is not a table")
    for key in document:
        if key not in FORMS:
            near = difflib.get_close_matches(key, FORMS, 1)
            raise CkptcheckError(f"{path}: unknown setting {key!r}" + (f"; did you mean {near[0]}?" if near else ""))
    if isinstance(document.get("ignore"), list):
        raise CkptcheckError(
            f"{path}: ignore is a list, but every ignored rule needs a reason", hint='write ignore = { IDX007 = "why" }'
        )
    try:
        return msgspec.convert(document, SettingsTable)
    except msgspec.ValidationError as error:
        # msgspec ends its message with the path of the value: $.select[0].
        key = str(error).rpartition("`$.")[2].rstrip("`").partition("[")[0]
        raise CkptcheckError(f"{path}: {key} is not {FORMS[key]}") from error


def _require_choice(path: Path, key: str, value: str, choices: Sequence[Choice]) -> Choice:
    for choice in choices:
        if value == choice:
            return choice
    raise CkptcheckError(f"{path}: {key} is {value!r}, not one of {', '.join(choices)}")
