"""Markdown, which CI services show beside a job: GitHub's step summary, Buildkite's annotations, comments of a merge request.

A table of the findings of each target, the gravest first, and the reasons of rules that could not look.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from ckptcheck.linter.report import Report
from ckptcheck.linter.rule import Rule
from ckptcheck.reporters.printable import printable
from ckptcheck.reporters.text import describe_verdict, describe_verdicts
from ckptcheck.text.formatting import count

MOST = 50
"""Findings of one target in the table: GitHub's summary takes 1 MB, and nobody reads more."""
MARKS = re.compile(r"([\\`*_~\[\]<>#|@]|:(?=[:/]))")
"""Characters that Markdown obeys, and those of the commands of a runner; a tensor may have any name."""


def render(reports: Sequence[Report], rules: Sequence[Rule]) -> str:
    """Write the reports as Markdown."""
    lines = [f"**{_escape(describe_verdicts(reports))}**", ""] if len(reports) > 1 else []
    for report in reports:
        lines += [f"### {_escape(report.target)}", "", _escape(describe_verdict(report)), ""]
        if report.findings:
            lines += ["| | rule | what is wrong, and what to do |", "|---|---|---|"]
        for finding in report.findings[:MOST]:
            parts = (finding.place and f"**{_escape(finding.place)}**", _escape(finding.message))
            told = "<br>".join(filter(None, (*parts, finding.hint and f"→ {_escape(finding.hint)}")))
            lines.append(f"| {finding.severity} | {finding.code} {_escape(finding.name)} | {told} |")
        if len(report.findings) > MOST:
            lines += ["", f"… and {count(len(report.findings) - MOST, 'more finding')}"]
        reasons: dict[str, list[str]] = {}
        for code, reason in (*report.other_reasons(report.crashed), *report.other_reasons(report.skipped)):
            reasons.setdefault(reason, []).append(code)
        lines += [
            "",
            *(f"- not checked: {', '.join(codes)}: {_escape(reason)}" for reason, codes in reasons.items()),
            "",
        ]
    return "\n".join(lines).rstrip() + "\n"


def _escape(text: str) -> str:
    return MARKS.sub(r"\\\1", printable(text))
