"""docs/adding-a-rule.md is a door: the two files that it shows are a rule, as they stand."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from ckptcheck.checkpoint.open import open_checkpoint
from ckptcheck.linter import rule_loader
from ckptcheck.linter.rule import Rule
from ckptcheck.linter.rule_index import describe_rule
from ckptcheck.linter.runner import run_rules
from tests.factories.checkpoint_cases import build_checkpoint, format_finding
from tests.paths import ROOT

PAGE = (ROOT / "docs/adding-a-rule.md").read_text(encoding="utf-8")
SECTIONS = ["What it checks", "Why it matters", "How to fix", "When it can be wrong", "Seen in"]
FILES = dict(re.findall(r"^```\w+\n# (rules/\S+)\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL))


@pytest.fixture
def rule(tmp_path: Path) -> Rule:
    for file, text in FILES.items():
        path = tmp_path / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    (code,) = (name for name in FILES if name.endswith(".py"))
    return rule_loader.load_rule_file(tmp_path / code)


def test_the_rule_has_a_page_and_is_announced_by_its_text(rule: Rule) -> None:
    assert (rule.code, rule.name, rule.summary) == ("LIC001", "missing-license", "The model has no license.")
    assert re.findall(r"^## (.+)$", rule.explanation, re.MULTILINE) == SECTIONS
    assert rule.path is not None
    assert describe_rule(rule.path.parent.parent, rule.path)


@pytest.mark.parametrize("kind", ["bad", "ok"])
def test_its_cases_are_as_they_say(rule: Rule, kind: str, tmp_path: Path) -> None:
    assert rule.path is not None
    (table,) = tomllib.loads(rule.path.with_suffix(".toml").read_text(encoding="utf-8"))[kind]
    path = build_checkpoint(table, tmp_path / "checkpoint")
    report = run_rules(open_checkpoint(str(path)), [rule])
    assert not report.crashed
    assert [format_finding(finding) for finding in report.findings] == table.get("expect", [])
