"""Reports of every verdict, and strict readers of every form: what holds for any output is checked here."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft4Validator, Draft202012Validator

import ckptcheck.reporters
from ckptcheck.linter.report import Report, Section
from ckptcheck.linter.rule import Finding, Rule
from ckptcheck.reporters import render
from tests.paths import DATA

FORM = Draft202012Validator(
    json.loads(Path(ckptcheck.reporters.__file__).with_name("report.schema.json").read_text(encoding="utf-8"))
)
SARIF_FILE = DATA / "sarif-schema-2.1.0.json"
SARIF = Draft4Validator(json.loads(SARIF_FILE.read_text(encoding="utf-8")))

PAGE = "The index names an absent shard.\n\n## What it checks\nEvery file of the\nweight map.\n\n## How\nFetch it."
RULES = [
    Rule("IDX001", "missing-shard", "error", check=lambda _: (), explanation=PAGE),
    Rule("CFG002", "tied-embeddings_lie", "warning", check=lambda _: ()),
    Rule("NUM003", "rare-dtype", "info", check=lambda _: (), explanation="A dtype few engines read."),
    Rule("ADP004", "no-base", "error", check=lambda _: (), explanation="x" * 3000),
    Rule("ZZZ009", "never-applied", "error", check=lambda _: ()),
]
MISSING = Finding(
    "IDX001", "missing-shard", "error", "a.safetensors is missing", "index.json", "weight_map", "fetch it"
)
LEFT_OVER = Finding("IDX001", "missing-shard", "error", "b.safetensors is missing", "index.json", "weight_map")
TIED = Finding("CFG002", "tied-embeddings_lie", "warning", "lm_head is stored", "config.json", "tie_word_embeddings")
RARE = Finding("NUM003", "rare-dtype", "info", "F8_E8M0 is rare")

CLEAN = Report(
    "runs/a",
    "LlamaForCausalLM · 1 file · 2 tensors",
    passed=("IDX001", "CFG002"),
    counts={"files": 1, "tensors": 2, "bytes": 3},
)
FOUND = Report(
    "runs/b", findings=(MISSING, LEFT_OVER, TIED, RARE), passed=("ADP004",), skipped=(("ZZZ009", "ignored"),), known=7
)
CRASHED = Report("runs/c", findings=(MISSING,), crashed=(("IDX001", "KeyError: 'x'"), ("ADP004", "denied")))
MEASURED = Report(
    "runs/m",
    passed=("IDX001",),
    sections=(
        Section("Cost", ("sync", "seconds", "ratio"), (("1", 0.123456, 2), ("2", None, float("nan")))),
        Section("Commands", lines=("ckptcheck scan 'a b' --headers-only",)),
    ),
)
UNOPENED = Report("runs/d", error="runs/d does not exist")
GROUPS = {
    "clean": [CLEAN],
    "findings": [FOUND],
    "crashed": [CRASHED],
    "unopened": [UNOPENED],
    "several": [CLEAN, FOUND, CRASHED, UNOPENED],
    "remote": [Report("hf://org/name@main", findings=(MISSING, RARE))],
    "sections": [MEASURED],
    "unknown rule": [Report("runs/e", findings=(Finding("MY001", "own", "error", "m"),), passed=("MY002", "IDX001"))],
}
groups = pytest.mark.parametrize("reports", GROUPS.values(), ids=GROUPS.keys())


def sarif_run(reports: list[Report]) -> dict[str, Any]:
    """The one run, after everything that holds for any log."""
    text = render("sarif", reports, RULES)
    text.encode()
    log = json.loads(text)
    SARIF.validate(log)
    (run,) = log["runs"]
    rules = run["tool"]["driver"]["rules"]
    for result in run["results"]:
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"]
        (location,) = result["locations"]  # code scanning refuses the whole upload for a result without one
        assert re.fullmatch(r"([\w.~/!$&'()*+,;=@-]|%[0-9A-F]{2})+|file:///\S*", location_uri(location), re.ASCII)
    identities = [
        (location_uri(result["locations"][0]), result["partialFingerprints"]["primaryLocationLineHash"])
        for result in run["results"]
    ]
    assert len(set(identities)) == len(identities)
    for note in run["invocations"][0]["toolExecutionNotifications"]:
        if "associatedRule" in note:
            assert note["associatedRule"].keys() == {"id"}
    return dict(run)


def location_uri(location: dict[str, Any]) -> str:
    return str(location["physicalLocation"]["artifactLocation"]["uri"])


def junit_root(reports: list[Report]) -> ET.Element:
    """The document, after everything that holds for any."""
    text = render("junit", reports, RULES)
    root = ET.fromstring(text.encode())
    assert root.tag == "testsuites"
    assert len(root) == len(reports)
    for suite in root:
        cases = suite.findall("testcase")
        outcomes = [case.findall("*") for case in cases]
        assert all(len(outcome) <= 1 for outcome in outcomes)
        tags = [outcome[0].tag for outcome in outcomes if outcome]
        assert set(tags) <= {"failure", "error", "skipped", "system-out"}
        assert suite.get("tests") == str(len(cases))
        assert [suite.get(name) for name in ("failures", "errors", "skipped")] == [
            str(tags.count(tag)) for tag in ("failure", "error", "skipped")
        ]
    for name in ("tests", "failures", "errors"):
        assert int(root.get(name, -1)) == sum(int(suite.get(name, -1)) for suite in root)
    return root


def find_test_case(suite: ET.Element, code: str) -> ET.Element:
    (case,) = (case for case in suite.findall("testcase") if case.get("name", "").startswith(code))
    return case


def parse_workflow_command(line: str) -> tuple[str, dict[str, str], str] | None:
    """Read a line as the runner of GitHub Actions does (ActionCommand.cs): the command, its properties and its text."""
    known = {"error", "warning", "notice", "debug", "group", "endgroup", "add-mask", "stop-commands", "set-output"}
    start = line.lstrip()
    if start.startswith("::") and (end := start.find("::", 2)) >= 0:
        name, _, rest = start[2:end].partition(" ")
        if name in known:
            pairs = (pair.split("=", 1) for pair in rest.strip().split(",") if pair)
            return (
                name,
                {pair[0]: unescape_workflow_text(pair[1]) for pair in pairs if len(pair) == 2},
                unescape_workflow_text(start[end + 2 :]),
            )
    if match := re.search(r"##\[([^\] ]*)[^\]]*\](.*)", line):
        return (match[1], {}, match[2]) if match[1] in known else None
    return None


def unescape_workflow_text(text: str) -> str:
    for escape, sign in (("%0D", "\r"), ("%0A", "\n"), ("%3A", ":"), ("%2C", ","), ("%25", "%")):
        text = text.replace(escape, sign)
    return text


def render_workflow_commands(reports: list[Report]) -> list[tuple[str, dict[str, str], str]]:
    """The commands, after everything that holds for any output: one a line, then a line of plain text per target."""
    text = render("github", reports, RULES)
    text.encode()
    lines = text.splitlines()  # at least where the runner does: it knows \r and \n only
    expected = sum(len(report.findings) + len(report.crashed) + bool(report.error) for report in reports)
    assert len(lines) == expected + len(reports)
    read = [parse_workflow_command(line) for line in lines]
    assert read[expected:] == [None] * len(reports)
    for line in lines[expected:]:
        assert line.startswith("ckptcheck: ")
    obeyed = [command for command in read[:expected] if command]
    assert len(obeyed) == expected
    for name, properties, _ in obeyed:
        assert name in {"error", "warning", "notice"}
        assert properties.keys() <= {"file", "title"}
    return obeyed


def render_sarif_location(target: str, file: str | None) -> dict[str, Any]:
    """Where SARIF puts a finding about a file."""
    report = Report(target, findings=(Finding("IDX001", "n", "error", "m", file),))
    (result,) = sarif_run([report])["results"]
    return dict(result["locations"][0]["physicalLocation"]["artifactLocation"])
