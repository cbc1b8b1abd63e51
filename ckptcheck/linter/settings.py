"""Reads the settings of a team: ``ckptcheck.toml``, or ``[tool.ckptcheck]`` in pyproject.toml.

They are searched from the working directory upwards, never in the checkpoint that is scanned: settings can name rule
folders, and rules are code.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar, get_args

import msgspec

from ckptcheck.errors import CkptcheckError
from ckptcheck.linter.report import FailOn
from ckptcheck.linter.rule import SEVERITIES, Rule, Severity
from ckptcheck.linter.selection import match_rules
from ckptcheck.text.file_io import expand_home
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


FORMS = {
    "select": "a list of strings",
    "ignore": "a table of strings",
    "severity": "a table of strings",
    "fail-on": "a string",
    "rules": "a list of strings",
}
"""Setting → what it has to be."""


@dataclass(frozen=True)
class Settings:
    """The settings of a team, checked."""

    select: tuple[str, ...] = ()
    """Codes of rules, beginnings of codes, or names; empty for all rules."""
    ignored: Mapping[str, str] = field(default_factory=dict)
    """Pattern as in `select` → why the rule is not run."""
    severities: Mapping[str, Severity] = field(default_factory=dict)
    """Pattern as in `select` → the severity in place of the rule's own."""
    fail_on: FailOn = "error"
    """The least severity that makes the exit code 1."""
    rule_folders: tuple[Path, ...] = ()
    """Folders with further rules."""
    file: Path | None = None
    """The file that the settings were read from; None where there is none."""

    def ignored_codes(self, rules: Sequence[Rule]) -> dict[str, str]:
        """Return code → reason. Raises CkptcheckError for a pattern that names no rule."""
        return {rule.code: reason for pattern, reason in self.ignored.items() for rule in match_rules(rules, pattern)}

    def severity_codes(self, rules: Sequence[Rule]) -> dict[str, Severity]:
        """Return code → severity; a longer pattern wins over a shorter. Raises CkptcheckError as above."""
        patterns = sorted(self.severities, key=len)
        return {rule.code: self.severities[pattern] for pattern in patterns for rule in match_rules(rules, pattern)}


def find_settings(start: Path, targets: Sequence[str] = ()) -> Settings:
    """Return the nearest settings from `start` upwards, passing over any that lie inside a target.

    Raises CkptcheckError when the file found is malformed.
    """
    scanned = [Path(target).resolve() for target in targets if Path(target).is_dir()]
    for folder in (start, *start.parents):
        if any(folder.resolve().is_relative_to(path) for path in scanned):
            continue
        own = folder / "ckptcheck.toml"
        if own.is_file():
            return load_settings(own)
        project = folder / "pyproject.toml"
        if project.is_file() and "ckptcheck" in read_toml_file(project).get("tool", {}):
            return load_settings(project)
    return Settings()


def load_settings(path: Path) -> Settings:
    """Read settings from a ckptcheck.toml or a pyproject.toml. Raises CkptcheckError when they are malformed."""
    document = read_toml_file(path)
    if path.name == "pyproject.toml":
        document = document.get("tool", {}).get("ckptcheck", {})
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
