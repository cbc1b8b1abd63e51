"""JUnit XML and the workflow commands of GitHub Actions: what a CI service makes of a report."""

from __future__ import annotations

import json

import pytest

import ckptcheck
from ckptcheck.linter.pictures import TextCell, TextTable
from ckptcheck.linter.report import Report
from ckptcheck.linter.rule import Finding
from ckptcheck.reporters import ReportFormat, render
from tests.factories.sample_reports import (
    CLEAN,
    CRASHED,
    FOUND,
    GROUPS,
    RULES,
    UNOPENED,
    find_test_case,
    groups,
    junit_root,
    render_workflow_commands,
)


@groups
def test_junit_has_a_case_for_every_rule_that_applied(reports: list[Report]) -> None:
    for suite, report in zip(junit_root(reports), reports, strict=True):
        codes = {finding.code for finding in report.findings} | set(report.passed)
        codes |= set(dict(report.skipped)) | set(dict(report.crashed))
        assert suite.get("name") == report.target
        assert len(suite.findall("testcase")) == len(codes) + bool(report.error)
        for code in codes:
            assert find_test_case(suite, code).get("classname") == code.rstrip("0123456789")


def test_junit_outcomes() -> None:
    (suite,) = junit_root([FOUND])
    assert [suite.get(name) for name in ("tests", "failures", "errors", "skipped")] == ["5", "1", "0", "1"]
    assert {entry.get("name"): entry.get("value") for entry in suite.iter("property")} == {
        "version": ckptcheck.__version__,
        "verdict": "findings",
        "known": "7",
    }
    assert [case.get("name") for case in suite.findall("testcase")] == [
        "IDX001 missing-shard",
        "CFG002 tied-embeddings_lie",
        "NUM003 rare-dtype",
        "ADP004 no-base",
        "ZZZ009 never-applied",
    ]
    (failure,) = find_test_case(suite, "IDX001")
    assert failure.tag == "failure"
    assert failure.get("message") == "a.safetensors is missing (and 1 more)"
    assert failure.text == (
        "error: index.json weight_map: a.safetensors is missing\n"
        "    fetch it\n"
        "error: index.json weight_map: b.safetensors is missing"
    )
    assert find_test_case(suite, "CFG002").findtext("system-out") == (
        "warning: config.json tie_word_embeddings: lm_head is stored"
    )
    assert find_test_case(suite, "NUM003").findtext("system-out") == "info: F8_E8M0 is rare"
    assert len(find_test_case(suite, "ADP004")) == 0
    (skipped,) = find_test_case(suite, "ZZZ009")
    assert (skipped.tag, skipped.get("message")) == ("skipped", "ignored")


def test_junit_crashes_keep_what_was_found_before() -> None:
    (suite,) = junit_root([CRASHED])
    (error,) = find_test_case(suite, "IDX001")
    assert (error.tag, error.get("message")) == ("error", "KeyError: 'x'")
    assert "a.safetensors is missing" in (error.text or "")
    (error,) = find_test_case(suite, "ADP004")
    assert (error.tag, error.get("message"), error.text) == ("error", "denied", "denied")


def test_junit_unopened_target_is_an_error() -> None:
    (suite,) = junit_root([UNOPENED])
    assert [suite.get(name) for name in ("tests", "errors")] == ["1", "1"]
    (error,) = find_test_case(suite, "target can be checked")
    assert error.get("message") == "runs/d does not exist"


def test_junit_names_tell_several_targets_apart() -> None:
    cases = [case for suite in junit_root(GROUPS["several"]) for case in suite.findall("testcase")]
    names = [(case.get("classname"), case.get("name")) for case in cases]
    assert len(set(names)) == len(names)
    assert ("IDX", "IDX001 missing-shard [runs/b]") in names


@groups
def test_github_commands(reports: list[Report]) -> None:
    render_workflow_commands(reports)


def test_github_annotates_and_sums_up() -> None:
    assert render_workflow_commands([FOUND]) == [
        (
            "error",
            {"file": "runs/b/index.json", "title": "IDX001 missing-shard"},
            "weight_map: a.safetensors is missing\nfetch it",
        ),
        (
            "error",
            {"file": "runs/b/index.json", "title": "IDX001 missing-shard"},
            "weight_map: b.safetensors is missing",
        ),
        (
            "warning",
            {"file": "runs/b/config.json", "title": "CFG002 tied-embeddings_lie"},
            "tie_word_embeddings: lm_head is stored",
        ),
        ("notice", {"title": "NUM003 rare-dtype"}, "runs/b: F8_E8M0 is rare"),
    ]
    *_, last = render("github", [FOUND], RULES).splitlines()
    assert last == "ckptcheck: runs/b: findings (2 errors, 1 warning, 1 info, 1 rule passed, 1 rule skipped)"
    assert (
        render("github", [CLEAN], RULES) == "ckptcheck: runs/a: clean (0 errors, 0 warnings, 0 info, 2 rules passed)\n"
    )


def test_github_crashes_and_unopened_targets_are_errors() -> None:
    assert render_workflow_commands([CRASHED, UNOPENED])[:2] == [
        ("error", {"title": "IDX001 could not check"}, "runs/c: KeyError: 'x'"),
        ("error", {"title": "ADP004 could not check"}, "runs/c: denied"),
    ]
    assert render_workflow_commands([UNOPENED]) == [
        ("error", {"title": "could not check"}, "runs/d: runs/d does not exist")
    ]


def test_github_remote_files_are_named_in_the_text() -> None:
    (first, _) = render_workflow_commands(GROUPS["remote"])
    assert first[1:] == (
        {"title": "IDX001 missing-shard"},
        "hf://org/name@main index.json weight_map: a.safetensors is missing\nfetch it",
    )


def test_github_commands_cannot_be_injected() -> None:
    finding = Finding(
        "IDX001",
        "missing-shard",
        "error",
        "50% of a::b\r\n::stop-commands::x",
        file="a,title=b::c%0A.json",
        key="lm_head\n::error title=x::owned\x1b[2K\u2028::notice::",
        hint="run\n##[error]owned",
    )
    assert render_workflow_commands([Report("a", findings=(finding,))]) == [
        (
            "error",
            {"file": "a/a,title=b::c%0A.json", "title": "IDX001 missing-shard"},
            r"lm_head\n::error title=x::owned\x1b[2K\u2028::notice::: 50% of a::b\r\n::stop-commands::x"
            "\n" + r"run\n# #[error]owned",
        )
    ]
    render_workflow_commands([Report("\n::error::##[error]owned", passed=("IDX001",))])


def test_a_page_on_stdout_holds_no_command() -> None:
    """`--format html` may pass by the runner too; the page shows the names as they are."""
    name = "a\n::stop-commands::x\n  ##[error]y"
    finding = Finding("IDX001", "missing-shard", "error", name, file=name, key=name, hint=name)
    page = render("html", [Report(name, findings=(finding,), skipped=(("VAL001", name),))], RULES)
    assert not [line for line in page.splitlines() if line.lstrip().startswith("::stop") or "##[" in line]
    assert "&#58;:stop-commands&#58;:x" in page


@pytest.mark.parametrize("form", ["json", "json-with-pictures", "sarif", "junit", "html", "github"])
def test_no_format_on_stdout_holds_the_old_form_of_a_command(form: ReportFormat) -> None:
    """The runner obeys ##[…] anywhere in a line, Azure's ##vso[…]; marks of direction would show a name from its end."""
    name = "##[error]x ##vso[task.complete]y \u202etxt.exe\u2066"
    finding = Finding("IDX001", "missing-shard", "error", name, file=name, key=name, hint=name)
    table = TextTable(name, name, (name,), ((TextCell(name, note=name, name=name),),))
    report = Report(name, findings=(finding,), skipped=(("VAL001", name),), pictures=(table,))
    written = render(form, [report], RULES)
    assert not [sign for sign in ("##[", "##vso[", "\u202e", "\u2066") if sign in written]
    if form == "json":
        assert json.loads(written) == json.loads(json.dumps(report.to_dict()))
