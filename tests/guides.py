"""Writes docs/guides.md from tests/guides.toml: ``python -m tests.guides``.

The page says nothing of commands, severities and environments that is not taken from them: a command is written only if the command
line takes it, a rule with the severities that its code gives, and only beside a command that judges it. What is said to be lacking
is in no environment, and a version is that of the environment's pin.
"""

from __future__ import annotations

import re
import shlex
from itertools import pairwise

import msgspec

from ckptcheck.cli.report_command import find_declared
from ckptcheck.linter.rule import Rule
from ckptcheck.linter.rule_loader import load_rules
from ckptcheck.live.experiments.probes.registry import select_probes
from ckptcheck.live.runtime.environments.recipe import builtin_recipes
from tests.paths import ROOT
from tests.test_pages import find_command, find_mistake

PAGE = ROOT / "docs/guides.md"
TABLE = ROOT / "tests/guides.toml"
HEAD = """# The five guides, line by line

What five public guides ask, the command that does it, and the rules and tests that hold it, or why it cannot be done.
`python -m tests.guides` writes this page.
"""
JUDGED = {
    "critic": {"critic"},
    "diff": {"comparison"},
    "parity judge": {"rollouts", "rollout-series", "rollout-runs"},
    "parity localize": {"localization"},
    "parity matrix": {"matrix"},
    "parity probe": {"probe"},
    "parity record": {"rollouts"},
    "parity why": {"attribution"},
    "preflight": {"job"},
    "refit": {"refit"},
    "refit history": {"history"},
}
"""Command → the evidence that its rules judge. A scan judges all the rest."""
SEVERITIES = ("info", "warning", "error")
RULES = {rule.code: rule for rule in load_rules()}


class Row(msgspec.Struct, forbid_unknown_fields=True):
    """A line of a guide."""

    asks: str
    run: list[str] = []
    says: str = ""
    rules: list[str] = []
    tests: list[str] = []
    lacks: list[str] = []
    why: str = ""


class Guide(msgspec.Struct, forbid_unknown_fields=True):
    """A guide, and its lines."""

    title: str
    source: str
    row: list[Row]


class Table(msgspec.Struct, forbid_unknown_fields=True):
    """All guides."""

    guide: list[Guide]


def read_table() -> list[Guide]:
    """Return the guides."""
    return msgspec.toml.decode(TABLE.read_bytes(), type=Table).guide


def check_command(command: str) -> str:
    """Return the verb of a command. Raises ValueError for one that the command line would refuse."""
    words = shlex.split(command)
    if mistake := find_mistake(words):
        raise ValueError(f"{command}: {mistake}")
    given = list(pairwise(words))
    select_probes([word for option, word in given if option == "--only"], ())
    verb, rest = find_command(words)
    settings = {each.name.replace("_", "-") for each in find_declared(verb).values() if each.is_setting}
    if unknown := {word.partition("=")[0] for option, word in given if option == "--set"} - settings:
        raise ValueError(f"{command}: no setting {unknown}")
    return " ".join(words[: len(words) - len(rest)])


def list_severities(rule: Rule) -> str:
    """Return the severities that a rule gives, the worst first."""
    assert rule.path is not None
    given = " ".join(re.findall(r"severity=(.*)", rule.path.read_text(encoding="utf-8")))
    return "/".join(name for name in reversed(SEVERITIES) if name == rule.severity or f'"{name}"' in given)


def render_row(row: Row) -> str:
    """Return a row of the page. Raises ValueError for what is not so."""
    verbs = [check_command(command) for command in row.run]
    judged = set[str]().union(*(JUDGED.get(verb, set()) for verb in verbs))
    known = set[str]().union(*JUDGED.values())
    for code in row.rules:
        if RULES[code].on not in judged and ("scan" not in verbs or RULES[code].on in known):
            raise ValueError(f"{row.asks}: none of {verbs} judges {code}")
    pins = {recipe.name: recipe.packages[0].replace("==", " ") for recipe in builtin_recipes()}
    if there := {lack for lack in row.lacks if lack in {text for pin in pins.items() for text in pin}}:
        raise ValueError(f"{row.asks}: {there} is in an environment")
    if not row.run and not row.why and not row.lacks:
        raise ValueError(f"{row.asks}: neither a command nor a reason")
    does = ", ".join(f"`{command}`" for command in row.run) or "–"
    held = [f"{RULES[code].name} ({list_severities(RULES[code])})" for code in row.rules]
    held += [name if name.endswith(".py") else f"`{name}`" for name in row.tests]
    lacking = f"needs {' and '.join(row.lacks)}" if row.lacks else ""
    why = re.sub(r"\{([\w-]+)\}", lambda match: pins[match[1]], row.why)
    reasons = ": ".join(filter(None, (lacking, why)))
    cells = (row.asks, does + f": {row.says}" * bool(row.says), "; ".join(filter(None, (", ".join(held), reasons))))
    return f"| {' | '.join(cells)} |"


def render() -> str:
    """Return the page."""
    lines = [HEAD]
    for guide in read_table():
        lines += [f"## {guide.title}\n", f"{guide.source}\n"]
        lines += ["| what the guide asks | our command | held by, or why not |", "|---|---|---|"]
        lines += [*map(render_row, guide.row), ""]
    return "\n".join(lines).rstrip() + "\n"


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
