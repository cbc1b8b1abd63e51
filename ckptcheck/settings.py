"""What a team wrote down once: ``ckptcheck.toml``, or ``[tool.ckptcheck]`` in pyproject.toml.

Looked for from the working directory upwards, never in the checkpoint that is scanned: settings can name rule folders,
and rules are code.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

from ckptcheck.errors import CkptcheckError
from ckptcheck.report import FailOn
from ckptcheck.rule import SEVERITIES, Rule, Severity
from ckptcheck.select import matching
from ckptcheck.tilde import expanded

KEYS = ("select", "ignore", "severity", "fail-on", "rules")


@dataclass(frozen=True)
class Settings:
    """select: codes or beginnings of codes. ignored: pattern → reason. severities: pattern → severity.

    rule_folders: folders with further rules. file: where this was read, None where nothing was written down.
    """

    select: tuple[str, ...] = ()
    ignored: Mapping[str, str] = field(default_factory=dict)
    severities: Mapping[str, Severity] = field(default_factory=dict)
    fail_on: FailOn = "error"
    rule_folders: tuple[Path, ...] = ()
    file: Path | None = None

    def ignored_codes(self, rules: Sequence[Rule]) -> dict[str, str]:
        """Return code → reason. Raises CkptcheckError for a pattern that names no rule."""
        return {rule.code: reason for pattern, reason in self.ignored.items() for rule in matching(rules, pattern)}

    def severity_codes(self, rules: Sequence[Rule]) -> dict[str, Severity]:
        """Return code → severity; a longer pattern wins over a shorter. Raises CkptcheckError as above."""
        patterns = sorted(self.severities, key=len)
        return {rule.code: self.severities[pattern] for pattern in patterns for rule in matching(rules, pattern)}


def find(start: Path, targets: Sequence[str] = ()) -> Settings:
    """Return the nearest settings from `start` upwards, passing over any that lie inside a target.

    Raises CkptcheckError when the file found is malformed.
    """
    scanned = [Path(target).resolve() for target in targets if Path(target).is_dir()]
    for folder in (start, *start.parents):
        if any(folder.resolve().is_relative_to(path) for path in scanned):
            continue
        own = folder / "ckptcheck.toml"
        if own.is_file():
            return load(own)
        project = folder / "pyproject.toml"
        if project.is_file() and "ckptcheck" in _parse(project).get("tool", {}):
            return load(project)
    return Settings()


def load(path: Path) -> Settings:
    """Read settings from a ckptcheck.toml or a pyproject.toml. Raises CkptcheckError when they are malformed."""
    table = _parse(path)
    if path.name == "pyproject.toml":
        table = table.get("tool", {}).get("ckptcheck", {})
    if not isinstance(table, dict):
        raise CkptcheckError(f"{path}: tool.ckptcheck is not a table")
    for key in table:
        if key not in KEYS:
            near = difflib.get_close_matches(key, KEYS, 1)
            raise CkptcheckError(f"{path}: unknown setting {key!r}" + (f"; did you mean {near[0]}?" if near else ""))
    ignored = _strings_by_code(path, table, "ignore")
    for code, reason in ignored.items():
        if not reason.strip():
            raise CkptcheckError(f"{path}: ignore.{code} gives no reason", hint=f'write why: {code} = "…"')
    severities = _strings_by_code(path, table, "severity")
    for code, severity in severities.items():
        _one_of(path, f"severity.{code}", severity, SEVERITIES)
    fail_on = table.get("fail-on", "error")
    _one_of(path, "fail-on", fail_on, get_args(FailOn))
    return Settings(
        select=_strings(path, table, "select"),
        ignored=ignored,
        severities=severities,  # type: ignore[arg-type]
        fail_on=fail_on,
        rule_folders=tuple((path.parent / Path(expanded(name))) for name in _strings(path, table, "rules")),
        file=path,
    )


def _parse(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise CkptcheckError(f"{path} is not TOML: {error}") from error
    except OSError as error:
        raise CkptcheckError(f"cannot read {path}: {error.strerror or error}") from error


def _strings(path: Path, table: dict[str, Any], key: str) -> tuple[str, ...]:
    value = table.get(key, [])
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise CkptcheckError(f"{path}: {key} is not a list of strings")
    return tuple(value)


def _strings_by_code(path: Path, table: dict[str, Any], key: str) -> dict[str, str]:
    value = table.get(key, {})
    if isinstance(value, list) and key == "ignore":
        raise CkptcheckError(
            f"{path}: ignore is a list, but every ignored rule needs a reason", hint='write ignore = { IDX007 = "why" }'
        )
    if not isinstance(value, dict) or not all(isinstance(item, str) for item in value.values()):
        raise CkptcheckError(f"{path}: {key} is not a table of strings")
    return value


def _one_of(path: Path, key: str, value: Any, choices: Sequence[str]) -> None:
    if value not in choices:
        raise CkptcheckError(f"{path}: {key} is {value!r}, not one of {', '.join(choices)}")
