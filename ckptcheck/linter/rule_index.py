"""Describes the built-in rules without running their files.

`ckptcheck/values/hatch_build.py` generates an index when it builds a wheel. A checkout has no index: there this module parses the
text of each rule's file, so that no build step is needed. The build hook runs this file by its path, before the package can be
imported, so it uses only the standard library: a build in isolation has nothing else.
"""

from __future__ import annotations

import ast
import builtins
import json
import re
from pathlib import Path
from typing import NamedTuple

INDEX = "index.json"
"""The name of the index, in the folder of the rules."""
FILE_NAME = re.compile(r"([a-z]+\d{3})_(\w+)\.py")
"""The name of a rule's file: its code and its name."""
DECORATOR = re.compile(
    r"""\n@rule\(\s*"(?P<code>\w+)",\s*"(?P<name>[\w-]+)",\s*severity="(?P<severity>\w+)"(?:,\s*on="(?P<on>[\w-]+)")?"""
    r"""(?P<when>,\s*when=)?"""
)
"""The decorator of a built-in rule."""


class RuleEntry(NamedTuple):
    """A rule's file, with the content of its decorator and its docstring."""

    file: str
    """The file, relative to the folder of the rules."""
    code: str
    name: str
    severity: str
    on: str
    has_condition: bool
    """Whether the rule has a `when`."""
    page: str
    """The docstring of the file."""
    condition: str = ""
    """The expression of its `when`, if it needs nothing else of the file; only an index has it, as to parse takes long."""


def list_rule_files(folder: Path) -> list[Path]:
    """Return the files of rules in a folder and below it, sorted."""
    return sorted(path for path in folder.rglob("*.py") if FILE_NAME.fullmatch(path.name))


def describe_rule(folder: Path, path: Path) -> RuleEntry | None:
    """Parse the text of a rule's file; None for one that is not written as the built-in rules are.

    Such a file begins with its docstring, and its decorator has the code, the name, `severity`, `on` and `when` in this order.
    """
    quotes, *rest = path.read_text(encoding="utf-8").split('"' * 3, 2)
    if len(rest) != 2:
        return None
    page, code = rest
    match = DECORATOR.match(code, code.find("\n@rule("))
    if match is None or not (quotes == "r" or (not quotes and "\\" not in page)):
        return None
    # Refuse a decorator whose rest, beyond the pattern, sets something that the entry would lack.
    remainder = code[match.end() :].partition("\ndef ")[0]
    if re.search(r"\bon\s*=(?!=)", remainder) if match["when"] else not re.match(r",?\s*\)", remainder):
        return None
    return RuleEntry(
        file=path.relative_to(folder).as_posix(),
        code=match["code"],
        name=match["name"],
        severity=match["severity"],
        on=match["on"] or "checkpoint",
        has_condition=match["when"] is not None,
        page=page,
    )


def build_index(folder: Path) -> str:
    """Return the index of a folder of rules as JSON. Raises ValueError for a file that cannot be described."""
    entries = []
    for path in list_rule_files(folder):
        entry = describe_rule(folder, path)
        if entry is None:
            raise ValueError(f"{path} is not written as a built-in rule is")
        entries.append(entry._replace(condition=_find_condition(path))._asdict())
    return json.dumps(entries, ensure_ascii=False)


def _find_condition(path: Path) -> str:
    """Return the expression of a rule's `when`; "" where there is none, or where it uses names that the file defines."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    calls = [call for node in tree.body if isinstance(node, ast.FunctionDef) for call in node.decorator_list]
    given = [each.value for call in calls if isinstance(call, ast.Call) for each in call.keywords if each.arg == "when"]
    if len(given) != 1:
        return ""
    nodes = list(ast.walk(given[0]))
    bound = {node.arg for node in nodes if isinstance(node, ast.arg)}
    bound |= {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    used = {node.id for node in nodes if isinstance(node, ast.Name)} - bound
    return ast.unparse(given[0]) if used <= vars(builtins).keys() else ""


def read_index(folder: Path) -> list[RuleEntry] | None:
    """Return the entries of the index, in the order of the files; None where there is none."""
    path = folder / INDEX
    if not path.is_file():
        return None
    return [RuleEntry(**entry) for entry in json.loads(path.read_bytes())]
