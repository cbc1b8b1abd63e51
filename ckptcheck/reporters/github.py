"""Workflow commands of GitHub Actions: every finding becomes an annotation. The last lines say the verdicts.

An error is annotated as an error, a warning as a warning, an info as a notice; a rule that crashed and a target that
could not be checked are errors. GitHub shows ten annotations of each kind per step; the log has them all.
"""

from __future__ import annotations

from collections.abc import Sequence

from ckptcheck.linter.report import Report, describe_reading
from ckptcheck.linter.rule import Finding, Rule, Severity
from ckptcheck.reporters.locations import path_of
from ckptcheck.reporters.printable import printable
from ckptcheck.reporters.runner_commands import HASHES
from ckptcheck.text.addresses import is_remote_address
from ckptcheck.text.formatting import count

COMMANDS: dict[Severity, str] = {"error": "error", "warning": "warning", "info": "notice"}


def render(reports: Sequence[Report], rules: Sequence[Rule]) -> str:
    """Write one workflow command per line, then one line of plain text per target."""
    lines: list[str] = []
    for report in reports:
        lines += [_reading(report)] if describe_reading(report) else []
        if report.error:
            lines.append(_command("error", {"title": "could not check"}, report.target, report.error))
        for code, error in report.other_reasons(report.crashed):
            lines.append(_command("error", {"title": f"{code} could not check"}, report.target, error))
        lines += [_annotation(report.target, finding) for finding in report.findings]
    return "\n".join([*lines, *map(_verdict, reports)]) + "\n"


def _reading(report: Report) -> str:
    """Return the files that were read, as a line of the log."""
    text = "; ".join(f"{label}: {value}" for label, value in describe_reading(report))
    return HASHES.sub("# ", f"ckptcheck: {printable(report.target)}: read {printable(text)}")


def _annotation(target: str, finding: Finding) -> str:
    """Annotate the file if the repository can have it; otherwise name the target in the text."""
    title = {"title": f"{finding.code} {finding.name}"}
    if finding.file and not is_remote_address(target):
        line = {"line": str(finding.line)} if finding.line else {}
        where, properties = finding.key, {"file": path_of(target, finding.file)} | line | title
    else:
        where, properties = " ".join(part for part in (target, finding.place) if part), title
    return _command(COMMANDS[finding.severity], properties, where, finding.message, hint=finding.hint)


def _command(name: str, properties: dict[str, str], where: str | None, message: str, hint: str | None = None) -> str:
    """Write a command from which the runner reads these properties and this text, the hint on a line of its own."""
    # printable first: a tensor's name may hold line ends; only the one before the hint stays
    text = ": ".join(printable(part) for part in (where, message) if part) + (f"\n{printable(hint)}" if hint else "")
    pairs = [f"{key}={_property(printable(value))}" for key, value in properties.items()]
    # a runner that does not know the command (an old one knows no notice) looks for others within the line
    return HASHES.sub("# ", f"::{name} {','.join(pairs)}::{_data(text)}")


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


def _verdict(report: Report) -> str:
    numbers = [count(report.count("error"), "error"), count(report.count("warning"), "warning")]
    numbers.append(f"{report.count('info')} info")
    for fate, codes in (("passed", report.passed), ("skipped", report.skipped), ("crashed", report.crashed)):
        if codes:
            numbers.append(f"{count(len(codes), 'rule')} {fate}")
    line = f"ckptcheck: {printable(report.target)}: {report.verdict} ({', '.join(numbers)})"
    return HASHES.sub("# ", line)
