"""JUnit XML, which every CI service shows: a test suite per target, a test case per rule that applied.

A rule that found errors fails. One that found only warnings or infos passes and says so in its output (system-out):
CI services know no third outcome, and a red test for a remark teaches people to ignore red tests. ``--fail-on`` decides
the exit code, not this file. A rule that could not look is skipped; one that crashed is an error, and its text lists
what it had found before. A target that could not be checked, or not all of it, is an error of its own, and the rules
that could not check for that reason are skipped.
"""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Iterator, Sequence
from itertools import chain

from ckptcheck import __version__
from ckptcheck.linter.report import Report, describe_reading
from ckptcheck.linter.rule import Finding, Rule
from ckptcheck.reporters.printable import printable
from ckptcheck.reporters.runner_commands import HASHES


def render(reports: Sequence[Report], rules: Sequence[Rule]) -> str:
    """Write the reports as JUnit XML."""
    root = ET.Element("testsuites", name="ckptcheck")
    names = {rule.code: rule.name for rule in rules}
    for report in reports:
        root.append(_suite(report, names, several=len(reports) > 1))
    for outcome in ("tests", "failures", "errors"):
        root.set(outcome, str(sum(int(suite.get(outcome, 0)) for suite in root)))
    ET.indent(root)
    text = HASHES.sub("&#35;", ET.tostring(root, encoding="unicode"))
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{text}\n'


def _suite(report: Report, names: dict[str, str], *, several: bool) -> ET.Element:
    suite = ET.Element("testsuite", name=printable(report.target))
    properties = ET.SubElement(suite, "properties")
    read = [(f"read: {label}", text) for label, text in describe_reading(report)]
    for name, value in (*read, ("version", __version__), ("verdict", report.verdict), ("known", str(report.known))):
        ET.SubElement(properties, "property", name=name, value=printable(value))
    # Some services distinguish tests only by class and name, so with several targets the name has to name the target.
    mark = f" [{printable(report.target)}]" if several else ""
    if report.error:
        case = ET.SubElement(suite, "testcase", classname="ckptcheck", name=f"target can be checked{mark}")
        _outcome(case, "error", printable(report.error))
    for code in _codes(report, names):
        case = ET.SubElement(suite, "testcase", classname=printable(_family(code)))
        findings = [finding for finding in report.findings if finding.code == code]
        name = names.get(code) or (findings[0].name if findings else "")
        case.set("name", printable(f"{code} {name}".rstrip()) + mark)
        crashed = dict(report.other_reasons(report.crashed)).get(code)
        skipped = dict(report.other_reasons(report.skipped)).get(code)
        if crashed is None and code in dict(report.crashed):
            skipped = "the target could not be checked, see above"
        _judge(case, findings, skipped, crashed)
    suite.set("tests", str(len(suite.findall("testcase"))))
    for outcome, attribute in (("failure", "failures"), ("error", "errors"), ("skipped", "skipped")):
        suite.set(attribute, str(len(suite.findall(f"testcase/{outcome}"))))
    return suite


def _judge(case: ET.Element, findings: list[Finding], skipped: str | None, crashed: str | None) -> None:
    """Give a test case its one outcome: services disagree about what a case with two outcomes means."""
    listed = "\n".join(chain.from_iterable(map(_lines, findings)))
    if crashed is not None:
        _outcome(case, "error", printable(crashed), listed and f"found before that:\n{listed}")
    elif any(finding.severity == "error" for finding in findings):
        more = f" (and {len(findings) - 1} more)" if len(findings) > 1 else ""
        _outcome(case, "failure", printable(findings[0].message) + more, listed)
    elif findings:
        ET.SubElement(case, "system-out").text = listed
    elif skipped is not None:
        ET.SubElement(case, "skipped", message=printable(skipped))


def _outcome(case: ET.Element, kind: str, message: str, listed: str = "") -> None:
    ET.SubElement(case, kind, message=message, type=kind).text = listed or message


def _lines(finding: Finding) -> Iterator[str]:
    place = f"{printable(finding.place)}: " if finding.place else ""
    yield f"{finding.severity}: {place}{printable(finding.message)}"
    if finding.hint:
        yield f"    {printable(finding.hint)}"


def _codes(report: Report, names: dict[str, str]) -> list[str]:
    """The codes of the rules that applied, in the order of the pack."""
    codes_found = (finding.code for finding in report.findings)
    applied = set(chain(codes_found, report.passed, dict(report.skipped), dict(report.crashed)))
    return [code for code in names if code in applied] + sorted(applied - set(names))


def _family(code: str) -> str:
    return code.rstrip("0123456789") or code
