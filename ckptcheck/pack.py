"""Finds rules: a file in a rule folder is a rule, and being there registers it.

The files of built-in rules are read, and run only when a rule first looks at something: a scan needs a third of them.
"""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, cast

from ckptcheck.errors import CkptcheckError
from ckptcheck.rule import Problem, Rule, Severity

FILE_NAME = re.compile(r"([a-z]+\d{3})_(\w+)\.py")
DECORATOR = re.compile(
    r"""\n@rule\(\s*"(?P<code>\w+)",\s*"(?P<name>[\w-]+)",\s*severity="(?P<severity>\w+)"(?:,\s*on="(?P<on>[\w-]+)")?"""
    r"""(?P<when>,\s*when=)?"""
)
"""How a built-in rule says what it is."""


def builtin_folder() -> Path:
    """Return the folder of the rules that come with ckptcheck: beside this file in a wheel, one up in a checkout."""
    here = Path(__file__).parent
    packed = here / "_rules"
    return packed if packed.is_dir() else here.parent / "rules"


def load(folders: Iterable[Path] = ()) -> list[Rule]:
    """Load the built-in rules and those of further folders, ordered by code within each folder's own.

    Loading runs the code of further folders' files: pass only folders the user named, never one found in a checkpoint.
    Raises CkptcheckError for a folder without rules, a file that cannot be loaded, or a code used twice.
    """
    rules: dict[str, Rule] = {}
    builtin = builtin_folder()
    for folder in (builtin, *folders):
        if not folder.is_dir():
            raise CkptcheckError(f"the rule folder {folder} does not exist")
        files = sorted(path for path in folder.rglob("*.py") if FILE_NAME.fullmatch(path.name))
        if not files:
            raise CkptcheckError(
                f"the rule folder {folder} holds no rule",
                hint="name a rule's file after its code and name: idx001_missing_shard.py",
            )
        for path in files:
            rule = (_announced(path) if folder == builtin else None) or load_file(path)
            if rule.code in rules:
                raise CkptcheckError(f"{path} and {rules[rule.code].path} both define {rule.code}")
            rules[rule.code] = rule
    return list(rules.values())


def _announced(path: Path) -> Rule | None:
    """Return the rule of a file that has not been run, None where it does not begin as those of built-in rules do."""
    quotes, page, code = path.read_text(encoding="utf-8").split('"' * 3, 2)
    head = DECORATOR.match(code, code.find("\n@rule("))
    if head is None or not (quotes == "r" or (not quotes and "\\" not in page)):
        return None

    @cache
    def loaded() -> Rule:
        return load_file(path)

    def check(evidence: Any) -> Iterable[Problem]:
        return loaded().check(evidence)

    def when(evidence: Any) -> bool:
        applies = loaded().when
        return applies is None or applies(evidence)

    return Rule(
        code=head["code"],
        name=head["name"],
        severity=cast("Severity", head["severity"]),
        check=check,
        on=head["on"] or "checkpoint",
        when=when if head["when"] else None,
        explanation=page,
        path=path,
    )


def load_file(path: Path) -> Rule:
    """Load the one rule of a file. Raises CkptcheckError when there is not exactly one."""
    name = f"ckptcheck_rule_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickling of errors look the module up by name
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise CkptcheckError(f"the rule {path} cannot be loaded: {type(error).__name__}: {error}") from error
    found = [value for value in vars(module).values() if isinstance(value, Rule)]
    if len(found) != 1:
        raise CkptcheckError(f"{path} defines {len(found)} rules; a rule's file defines exactly one")
    return replace(found[0], explanation=module.__doc__ or "", path=path)
