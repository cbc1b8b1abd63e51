"""Every form of the report: nothing that a checkpoint holds can break or bend it."""

from __future__ import annotations

import io
import json
import re
import urllib.parse

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from ckptcheck.errors import CkptcheckError
from ckptcheck.linter.report import Report
from ckptcheck.linter.rule import Finding
from ckptcheck.reporters import FORMATS, render, text
from tests.factories.sample_reports import (
    CLEAN,
    FORM,
    MEASURED,
    RULES,
    groups,
    junit_root,
    render_sarif_location,
    render_workflow_commands,
    sarif_run,
)


@groups
@pytest.mark.parametrize("form", [form for form in FORMATS if form != "text"])
def test_output_ends_with_one_line_end(form: str, reports: list[Report]) -> None:
    text = render(form, reports, RULES)
    assert text.endswith("\n")
    assert not text.endswith("\n\n")


def test_unknown_format() -> None:
    with pytest.raises(CkptcheckError, match="'yaml' is no report format"):
        render("yaml", [CLEAN], RULES)


def joined(text: str) -> str:
    """JSON cannot tell two surrogates that stand side by side from the character they make together."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")


NASTY = ["]]>", "::", "\n::error::x", "\r\n", "\0", "\x1b[2J", "%0A", "%", ",", "##[error]", "&<>\"'", "{0}", "[a](b)"]
NASTY += [
    "\ud800",
    "\udcff",
    "\ufffe",
    "\uffff",
    "\u2028",
    "\x85",
    "\x0c",
    "\u202e",
    "../",
    "//",
    "hf://",
    "a:b",
    "]]",
    "é",
    "𝄞",
]
fragments = st.one_of(st.sampled_from(NASTY), st.text(st.characters(), max_size=6))
anything = st.lists(fragments, max_size=5).map("".join).map(joined)
perhaps = st.none() | anything
findings = st.builds(
    lambda rule, message, file, key, hint: Finding(rule.code, rule.name, rule.severity, message, file, key, hint),
    st.sampled_from(RULES),
    anything,
    perhaps,
    perhaps,
    perhaps,
)
fates = st.lists(st.tuples(st.sampled_from([rule.code for rule in RULES]), anything), max_size=2).map(tuple)
reports_of_anything = st.lists(
    st.builds(
        lambda **fields: Report(**fields),
        target=anything.map(lambda text: text.replace("\0", "")),
        findings=st.lists(findings, max_size=3).map(tuple),
        passed=st.lists(st.sampled_from(["IDX001", "CFG002"]), unique=True, max_size=2).map(tuple),
        skipped=fates,
        crashed=fates,
        error=perhaps,
    ),
    min_size=1,
    max_size=3,
)
hostile = settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
EVERYTHING = joined("".join(NASTY))
with_everything = example(
    [Report(EVERYTHING, findings=(Finding("IDX001", "n", "error", *[EVERYTHING] * 4),), error=EVERYTHING)]
)


@hostile
@with_everything
@given(reports_of_anything)
def test_nothing_breaks_json(reports: list[Report]) -> None:
    text = render("json", reports, RULES)
    assert not re.search(r"[\x7f-\x9f\u2028\u2029]", text)
    form = json.loads(text.encode())
    dicts = [report.to_dict() for report in reports]
    assert (form.get("reports") or [form]) == dicts
    FORM.validate(form)


ABSOLUTE = (Finding("IDX001", "n", "error", "lost", "/models/a.safetensors"),)


@hostile
@with_everything
@example([Report("a", findings=ABSOLUTE), Report("b", findings=ABSOLUTE)])
@given(reports_of_anything)
def test_nothing_breaks_sarif(reports: list[Report]) -> None:
    run = sarif_run(reports)
    assert len(run["results"]) == sum(len(report.findings) for report in reports)
    for result in run["results"]:
        assert re.sub(r"\{\{|\}\}", "", result["message"]["text"]).isprintable()
        assert not re.search(r"[{}]|\]\(", re.sub(r"\{\{|\}\}", "", result["message"]["text"]))


@hostile
@with_everything
@given(reports_of_anything)
def test_nothing_breaks_junit(reports: list[Report]) -> None:
    root = junit_root(reports)
    for element in root.iter():
        for value in [*element.attrib.values(), element.text or ""]:
            assert all(line.isprintable() for line in value.split("\n"))


@hostile
@with_everything
@given(reports_of_anything)
def test_nothing_breaks_out_of_a_github_command(reports: list[Report]) -> None:
    render_workflow_commands(reports)


@hostile
@given(anything.filter(bool))
def test_uris_name_the_file(file: str) -> None:
    if "/" in file or file in {".", ".."} or "\0" in file:
        return
    uri = render_sarif_location("a", file)["uri"]
    read = urllib.parse.unquote_to_bytes(uri.removeprefix("a/"))
    assert file.encode("utf-8", "surrogatepass") == read or file.encode("utf-8", "surrogateescape") == read


def test_sections_stand_below_the_findings_aligned() -> None:
    told = io.StringIO()
    text.write([MEASURED], RULES, told)
    assert told.getvalue().splitlines()[1:] == [
        "",
        "  Cost",
        "  sync  seconds  ratio",
        "  1      0.1235      2",
        "  2           –    nan",
        "",
        "  Commands",
        "  ckptcheck scan 'a b' --headers-only",
        "",
        "✓ clean · 1 rule passed",
    ]


@given(
    st.lists(
        st.sampled_from(["::", ":", "##[", "#", "[", "vso[", " ", "\n", "\t", "a", "\u00a0", "error"]), max_size=12
    )
)
def test_no_line_of_a_text_report_is_a_command_to_a_runner(parts: list[str]) -> None:
    hostile = "".join(parts)
    finding = Finding("IDX001", "missing-shard", "error", hostile, file=hostile, key=hostile, hint=hostile)
    report = Report(hostile, hostile, findings=(finding,), passed=("IDX001",))
    text.write([report], RULES, told := io.StringIO(), verbose=True)
    for line in told.getvalue().splitlines():
        assert not line.lstrip().startswith("::")
        assert "##[" not in line
        assert "##vso[" not in line


def test_what_is_legal_alarms_nobody() -> None:
    """Infos are no warnings; beside other targets they take one line, with their codes."""
    note = Finding("CFG028", "implausible-number", "info", "an older reader takes another base")
    warned = Report(
        "b", findings=(Finding("IDX007", "mismatched-totals", "warning", "off by one"),), passed=("CFG001",)
    )
    informed = Report("a", findings=(note,), passed=("CFG001",), headline="2 tensors are equal")
    assert text.render([informed], RULES).splitlines()[-2:] == [
        "ℹ no errors or warnings · 2 tensors are equal · 1 info · 1 rule passed",
        "  ckptcheck rule CFG028 explains the first one",
    ]
    short = "a  ℹ no errors or warnings · 2 tensors are equal · 1 info (CFG028) · 1 rule passed"
    lines = text.render([informed, warned], RULES).splitlines()
    assert (lines[0], lines[-1]) == (short, "! 1 of 2 targets has warnings: b")
    for form in ("html", "markdown"):
        assert "no errors or warnings" in render(form, [informed], RULES)
    assert 'color:#00748f"><b>no errors or warnings' in informed._repr_html_()
    assert text.render([informed, CLEAN], RULES).splitlines()[-1] == "ℹ 2 checkpoints: no errors or warnings"


def test_what_many_targets_share_is_told_once() -> None:
    """The steps of a run have the same fault: it is told at the first one, and named at the others."""
    fault = Finding("IDX001", "missing-shard", "error", "a shard is missing", hint="fetch it")
    own = Finding("IDX007", "mismatched-totals", "warning", "off by one")
    reports = [Report(f"step-{step}", findings=(fault, own) if step == 2 else (fault,)) for step in (1, 2, 3)]
    told = text.render(reports, RULES)
    assert told.count("a shard is missing") == told.count("→ fetch it") == 1
    assert "\nstep-3  ✗ 1 error (IDX001, as in step-1) · 0 rules passed\n" in told
    assert "\n\n  error   IDX001 missing-shard  as in step-1\n\n  warning IDX007" in told
    stream = io.StringIO()
    text.write(reports, RULES, stream, verbose=True)
    assert stream.getvalue().count("a shard is missing") == 3


def test_names_in_reasons_are_shown_as_they_are() -> None:
    """rich once made an emoji of `:warning:`, and a line of blanks before what is left out."""
    stream = io.StringIO()
    findings = (Finding("IDX001", "n", "error", "lost"),) * 6
    text.write([Report("a", findings=findings, skipped=(("CFG001", "no :warning: in [bold]"),))], RULES, stream)
    assert "\n  skipped CFG001: no :warning: in [bold]\n" in stream.getvalue()
    assert "lost\n\n  … and 1 more finding of IDX001" in stream.getvalue()


def test_styles_can_be_asked_for_where_there_is_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    for value, is_styled in (("", False), ("1", True)):
        monkeypatch.setenv("FORCE_COLOR", value)
        stream = io.StringIO()
        text.write([CLEAN], RULES, stream)
        assert ("\x1b[" in stream.getvalue()) == is_styled
