"""What docs/guides.md says of commands, options, severities, rules, experiments and tests is what the program has."""

from __future__ import annotations

import re
import shlex
from itertools import pairwise

import pytest

from ckptcheck.cli.report_command import find_declared
from ckptcheck.linter.rule_loader import load_rules
from ckptcheck.live.experiments.attribution.experiments import EXPERIMENTS
from ckptcheck.live.experiments.probes.registry import select_probes
from tests.paths import ROOT
from tests.test_pages import find_command, find_mistake

PAGE = (ROOT / "docs/guides.md").read_text(encoding="utf-8")
ROWS = [
    [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
    for line in PAGE.splitlines()
    if line.startswith("| ") and not line.startswith("| what the guide asks")
]
FILES = {path: path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py")}
NO_COMMAND = re.compile(r"none\b|refused|not (?:loaded|run)|the (?:same|report|first call)|said as|info where|\[.+\]\(")
"""How the second cell of a row begins that names no command."""


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0][:40])
def test_a_row_names_what_does_it_and_what_holds_it(row: list[str]) -> None:
    _, does, _ = row
    assert all(row)
    commands = re.findall(r"`([^`]+)`", does)
    assert commands or NO_COMMAND.match(does), does
    for command in commands:
        words = shlex.split(command.removeprefix("ckptcheck "))
        # what a sentence leaves out: the model, the file, the job
        assert re.fullmatch(r"|\w+ is missing", find_mistake(words)), command
        given = list(pairwise(words))
        select_probes([word for option, word in given if option == "--only"], ())
        declared = {
            each.name.replace("_", "-") for each in find_declared(find_command(words)[0]).values() if each.is_setting
        }
        assert {word.partition("=")[0] for option, word in given if option == "--set"} <= declared, command


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0][:40])
def test_a_test_that_a_row_names_is_of_its_command(row: list[str]) -> None:
    """One of the tests at least lies in a file that names the command."""
    names = re.findall(r"\btest_\w+(?:\.py)?", row[2])
    verbs = {words.removeprefix("parity ").split()[0] for words in re.findall(r"`([^`]+)`", row[1])}
    texts = [text for path, text in FILES.items() if any(path.name == name or f"def {name}(" in text for name in names)]
    assert not names or not verbs or any(verb in text for verb in verbs for text in texts)


def test_severities_are_those_of_the_rules() -> None:
    said = re.findall(r"\b([a-z]+(?:-[a-z]+)+)[:,] (?:an? )?(error|warning|info)\b", PAGE)
    assert said
    for name, severity in said:
        (rule,) = [rule for rule in load_rules() if rule.name == name]
        assert rule.path is not None
        text = rule.path.read_text(encoding="utf-8")
        assert severity in {rule.severity, *re.findall(r'severity="(\w+)"', text)}, name


def test_the_tests_that_it_names_are_there() -> None:
    named = set(re.findall(r"\btest_\w+(?:\.py)?", PAGE))
    assert len(named) > 30
    there = {path.name for path in FILES}
    text = "\n".join(FILES.values())
    for name in named:
        assert name in there or f"def {name}(" in text, name


def test_the_rules_that_it_names_are_there() -> None:
    """Lists of names in parentheses and in the last cell of a row are names of rules."""
    lists = re.findall(r"\(([a-z0-9, -]+)[:)]", PAGE) + [row[2] for row in ROWS]
    named = {name for each in lists for name in each.split(", ") if re.fullmatch(r"[a-z0-9]+(?:-[a-z0-9]+)+", name)}
    assert len(named) > 30
    assert named <= {rule.name for rule in load_rules()}


def test_the_table_of_experiments_has_every_experiment() -> None:
    page = (ROOT / "docs/kl-grows.md").read_text(encoding="utf-8")
    table = page.partition("| experiment | what it changes | needs |\n")[2].partition("\n\n")[0]
    shown = [name.strip() for row in table.splitlines()[1:] for name in row.split("|")[1].split(",")]
    assert sorted(shown) == sorted(experiment.name for experiment in EXPERIMENTS)
