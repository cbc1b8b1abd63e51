"""The message of a finding names a few tensors; its JSON form names all, and a stored report keeps them."""

from __future__ import annotations

import json
from pathlib import Path

from ckptcheck.linter import rule_loader
from ckptcheck.linter.runner import run_rules
from ckptcheck.linter.stored_report import load_report
from ckptcheck.reporters import render
from tests.factories.refit_cases import run_trial_case

RULES = [rule for rule in rule_loader.load_rules() if rule.on == "refit"]


def test_all_names_of_a_finding_are_in_its_json_form(tmp_path: Path) -> None:
    trace = run_trial_case({"trainer": {"exports": "stale", "since": 1}}, tmp_path / "trial")
    form = json.loads(render("json", [run_rules(trace, RULES)], RULES))
    finding = next(finding for finding in form["findings"] if finding["code"] == "REF037")
    assert "and 32 more" in finding["message"]
    assert sorted(finding["names"]) == sorted(weight.name for weight in trace.weights)
    stored = next(each for each in load_report(form).findings if each.code == "REF037")
    assert list(stored.names) == finding["names"]
