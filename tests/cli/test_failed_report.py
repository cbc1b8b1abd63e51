"""A report lands where -o says, whatever could not be checked."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path

import jsonschema
import pytest

from ckptcheck.cli.app import build_app
from tests.factories.command_line import RULE, SCHEMA, run, run_from_scratch
from tests.test_public_interface import _commands

FORMATS = ("text", "json", "json-with-pictures", "sarif", "junit", "github", "html")
NOWHERE = {
    "scan": ["nowhere"],
    "diff": ["sound", "nowhere"],
    "verify": ["nowhere", "none.json"],
    "series": ["nowhere"],
    "join": ["nowhere"],
    "preflight": ["none.yaml"],
    "gate": ["none.yaml"],
    "critic": ["nowhere"],
    "refit": ["nowhere"],
    "attach": ["http://127.0.0.1:1"],
    "conformance": ["nowhere"],
    "refit lora": ["nowhere", "nowhere"],
    "refit history": ["none.jsonl"],
    "parity judge": ["none.safetensors"],
    "parity matrix": ["nowhere"],
    "parity probe": ["nowhere"],
    "parity why": ["none.safetensors"],
    "parity localize": ["nowhere"],
}
"""Verb → arguments that name nothing that is there."""


def test_every_verb_that_reports_is_tried() -> None:

    verbs = {
        name
        for name, command in _commands(build_app())
        if {"format", "output"} <= {parameter.name for parameter in command.params}
    }
    assert verbs == set(NOWHERE)


@pytest.mark.parametrize("verb", NOWHERE)
def test_nothing_to_check_is_a_report(here: Path, verb: str) -> None:
    result = run(here, *verb.split(), *NOWHERE[verb], "-o", "report.json", "--format", "json")
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith("ckptcheck: ")
    report = json.loads((here / "report.json").read_text(encoding="utf-8"))
    jsonschema.validate(report, SCHEMA)
    assert report["verdict"] == "incomplete"
    assert report["error"].partition(" (")[0] == result.stderr.splitlines()[0].removeprefix("ckptcheck: ")


@pytest.mark.parametrize("form", FORMATS)
def test_every_format_says_it(here: Path, form: str) -> None:
    result = run(here, "scan", "nowhere", "-o", "report", "--format", form)
    text = (here / "report").read_text(encoding="utf-8")
    assert (result.returncode, result.stdout) == (2, "")
    assert text.count("nowhere does not exist") == (2 if form == "junit" else 1)
    if form == "sarif":
        assert not json.loads(text)["runs"][0]["invocations"][0]["executionSuccessful"]
    if form == "junit":
        assert ET.fromstring(text).get("errors") == "1"
    printed = run(here, "scan", "nowhere", "--format", form)
    assert printed.stdout == ("" if form == "text" else text), "stdout is the report; the terminal has the sentence"


def test_a_report_for_each_target_where_nothing_could_begin(here: Path) -> None:
    run(here, "scan", "sound", "broken", "--rules", "nowhere", "-o", "report", "--format", "json")
    assert [report["target"] for report in json.loads((here / "report").read_text())["reports"]] == ["sound", "broken"]


def test_a_bug_of_ours_is_a_report_too(here: Path) -> None:
    (here / "mine").mkdir()
    (here / "mine/bob001_other_name.py").write_text(RULE.format(body="yield object()"))
    result = run(here, "scan", "sound", "--rules", "mine", "-o", "report", "--format", "json")
    assert result.returncode == 2
    assert json.loads((here / "report").read_text())["verdict"] == "incomplete"


@pytest.mark.parametrize(
    ("words", "output"),
    [
        (["scan", "sound/model-00001-of-00003.safetensors"], "sound/model-00001-of-00003.safetensors"),
        (["verify", "sound", "sound/config.json"], "sound/config.json"),
        (["scan", "nowhere", "--stats", "x"], "x"),
        (["scan", "sound", "--fix", "--diff"], "report"),
        (["scan", "sound"], "nowhere/report"),
    ],
)
def test_no_report_takes_the_place_of_an_input_or_of_another_output(here: Path, words: list[str], output: str) -> None:
    before = {path: path.read_bytes() for path in here.rglob("*") if path.is_file()}
    assert run(here, *words, "-o", output).returncode == 2
    assert {path: path.read_bytes() for path in here.rglob("*") if path.is_file()} == before


def test_a_baseline_written_to_stdout_does_not_wait(here: Path) -> None:
    result = run_from_scratch(here, "scan", "broken", "--write-baseline", "/dev/stdout", "-o", "report")
    first, verdict = result.stderr.splitlines()
    assert (result.returncode, first) == (0, "1 finding written to /dev/stdout")
    assert verdict.startswith("✓ clean")
    assert verdict.endswith("the report is report")
    assert json.loads(result.stdout)["schema"] == "ckptcheck-baseline/1"
