"""Finds rules: every file in a rule folder with a rule's name is a rule; there is no other registration.

The file of a built-in rule runs only when the rule first checks something, because a scan needs only a third of them.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any, cast

from msgspec import structs

from ckptcheck.errors import CkptcheckError
from ckptcheck.linter.rule import Problem, Rule, Severity
from ckptcheck.linter.rule_index import RuleEntry, describe_rule, list_rule_files, read_index


def builtin_rule_folder() -> Path:
    """Return the folder of the rules that come with ckptcheck: beside this file in a wheel, one up in a checkout."""
    here = Path(__file__).parent.parent
    packed = here / "_rules"
    return packed if packed.is_dir() else here.parent / "rules"


def load_rules(folders: Iterable[Path] = ()) -> list[Rule]:
    """Load the built-in rules, then the rules of further folders, ordered by code within each folder.

    Loading runs the code of further folders' files: pass only folders the user named, never one found in a checkpoint.
    Raises CkptcheckError for a folder without rules, a file that cannot be loaded, or a code used twice.
    """
    rules: dict[str, Rule] = {}
    loaded = [*_load_builtin_rules(builtin_rule_folder())]
    for folder in folders:
        loaded += [load_rule_file(path) for path in _require_rule_files(folder)]
    for rule in loaded:
        if rule.code in rules:
            raise CkptcheckError(f"{rule.path} and {rules[rule.code].path} both define {rule.code}")
        rules[rule.code] = rule
    return list(rules.values())


def _require_rule_files(folder: Path) -> list[Path]:
    """List the files of rules in a folder. Raises CkptcheckError if there is none."""
    if not folder.is_dir():
        raise CkptcheckError(f"the rule folder {folder} does not exist")
    files = list_rule_files(folder)
    if not files:
        raise CkptcheckError(
            f"the rule folder {folder} holds no rule",
            hint="name a rule's file after its code and name: idx001_missing_shard.py",
        )
    return files


@cache
def _load_builtin_rules(folder: Path) -> tuple[Rule, ...]:
    """Load the built-in rules from their index, or from their files where there is no index; once in a process."""
    if (entries := read_index(folder)) is not None:
        return tuple(_create_lazy_rule(folder / entry.file, entry) for entry in entries)
    rules = []
    for path in _require_rule_files(folder):
        entry = describe_rule(folder, path)
        rules.append(load_rule_file(path) if entry is None else _create_lazy_rule(path, entry))
    return tuple(rules)


def _create_lazy_rule(path: Path, entry: RuleEntry) -> Rule:
    """Return a rule whose file runs when its check is first called, or its `when`, if the index does not have that."""

    @cache
    def load() -> Rule:
        return load_rule_file(path)

    def check(evidence: Any) -> Iterable[Problem]:
        return load().check(evidence)

    def when(evidence: Any) -> bool:
        applies = eval(entry.condition) if entry.condition else load().when
        return applies is None or applies(evidence)

    return Rule(
        code=entry.code,
        name=entry.name,
        severity=cast("Severity", entry.severity),
        check=check,
        on=entry.on,
        when=when if entry.has_condition else None,
        explanation=entry.page,
        path=path,
    )


def load_rule_file(path: Path) -> Rule:
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
    rules = [value for value in vars(module).values() if isinstance(value, Rule)]
    if len(rules) != 1:
        raise CkptcheckError(f"{path} defines {len(rules)} rules; a rule's file defines exactly one")
    return structs.replace(rules[0], explanation=module.__doc__ or "", path=path)
