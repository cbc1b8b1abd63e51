"""The report for a person: what is wrong, where, and what to do next, gravest first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from shutil import get_terminal_size
from typing import IO, cast

from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.text import Text

from ckptcheck.linter.report import Report, describe_reading
from ckptcheck.linter.rule import SEVERITIES, Finding, Rule
from ckptcheck.reporters import tables
from ckptcheck.reporters.printable import printable
from ckptcheck.reporters.runner_commands import CommandFreeStream
from ckptcheck.text.encoding import lacks_signs
from ckptcheck.text.formatting import count

STYLE = {"error": "bold red", "warning": "yellow", "info": "cyan"}
MOST_PER_RULE = 5
"""Findings of one rule that are shown in full; --format json has them all."""
HEIGHT = 25
"""Height of an output that is no terminal: no part of a report depends on it."""
MOST_CODES = 5
"""Rules that the line on several reports names."""
GROWTH = 4
"""Characters by which a line of ours may grow where its signs are written in ASCII."""


def write(reports: Sequence[Report], rules: Sequence[Rule], stream: IO[str], *, verbose: bool = False) -> None:
    """Write the reports to a stream, in colour if it is a terminal. `verbose` lists what passed as well."""
    console = _open_console(stream)
    names = {rule.code: rule.name for rule in rules}
    for number, report in enumerate(reports):
        if number:
            console.print()
        _one(console, report, names, verbose)
    if len(reports) > 1:
        console.print(Text(f"\n{summarize(reports)}", style="bold"))


def write_findings(report: Report, stream: IO[str]) -> None:
    """Write the findings of a report alone, and an empty line."""
    console = _open_console(stream)
    _findings(console, report)
    console.print()


def _open_console(stream: IO[str]) -> Console:
    safe = cast("IO[str]", CommandFreeStream(stream))
    width = width_for(stream)
    # rich asks the terminal for its size at each line, unless the size is given
    return Console(file=safe, highlight=False, width=width, height=None if width is None else HEIGHT)


def summarize(reports: Sequence[Report]) -> str:
    """Return one line on several reports: how many have which verdict, and which rules found something most often."""
    verdicts: Counter[str] = Counter(report.verdict for report in reports)
    words = {"clean": "clean", "findings": "with findings", "incomplete": "incomplete"}
    outcome = ", ".join(f"{verdicts[verdict]} {word}" for verdict, word in words.items() if verdicts[verdict])
    codes = Counter(code for report in reports for code in dict.fromkeys(each.code for each in report.findings))
    found = ", ".join(f"{code} in {number}" for code, number in codes.most_common(MOST_CODES))
    more = f" and {count(len(codes) - MOST_CODES, 'more rule')}" if len(codes) > MOST_CODES else ""
    return f"{count(len(reports), 'report')}: {outcome}" + (f" · {found}{more}" if found else "")


def width_for(stream: IO[str]) -> int | None:
    """Return the width to wrap at: a terminal's own (None), and none at all for a pipe or a file, so that grep works.

    Where the terminal's encoding lacks our signs, a line grows by some characters when it is written (``→`` becomes ``->``).
    """
    if not stream.isatty():
        return 10_000
    return max(get_terminal_size().columns - GROWTH, 20) if lacks_signs(stream) else None


def _one(console: Console, report: Report, names: dict[str, str], verbose: bool) -> None:
    console.print(Text(printable(report.target), style="bold"))
    if report.subject:
        console.print(Text(printable(report.subject), style="dim"))
    _reading(console, report)
    _findings(console, report)
    _not_run(console, report, names, verbose)
    _consumers(console, report)
    for section in report.sections:
        tables.write(console, section, verbose=verbose)
    console.print()
    console.print(_verdict(report))
    if report.other_reasons(report.crashed) != report.crashed:
        console.print(Text("  no rule passes until that is mended", style="dim"))
    if report.findings:
        first = report.findings[0].code
        console.print(Text(f"  ckptcheck rule {first} explains the first one", style="dim"))


def _findings(console: Console, report: Report) -> None:
    shown: dict[str, int] = {}
    for finding in report.findings:
        shown[finding.code] = shown.get(finding.code, 0) + 1
        if shown[finding.code] <= MOST_PER_RULE:
            _finding(console, finding)
    for code, number in shown.items():
        if number > MOST_PER_RULE:
            more = f"… and {count(number - MOST_PER_RULE, 'more finding')} of {code}; --format json lists them all"
            console.print(Padding(Text(more, style="dim"), (1, 0, 0, 2), expand=False))


def _reading(console: Console, report: Report) -> None:
    """Print what was read, before what was found in it."""
    rows = describe_reading(report)
    wide = max((len(label) for label, _ in rows), default=0)
    if rows:
        console.print()
    for label, text in rows:
        line = Text("  ").append(label.ljust(wide), "dim").append("  ").append(printable(text))
        console.print(line, soft_wrap=True)


def _finding(console: Console, finding: Finding) -> None:
    console.print()
    head = Text("  ")
    head.append(f"{finding.severity:<7}", STYLE[finding.severity])
    head.append(f" {finding.code} ", "bold")
    head.append(finding.name, "dim")
    console.print(head)
    if finding.place:
        console.print(Padding(Text(printable(finding.place), style="underline"), (0, 0, 0, 10), expand=False))
    console.print(Padding(Text(printable(finding.message)), (0, 0, 0, 10), expand=False))
    if finding.hint:
        console.print(Padding(Text("→ " + printable(finding.hint), style="green"), (0, 0, 0, 10), expand=False))


def _consumers(console: Console, report: Report) -> None:
    """Print what each consumer makes of it."""
    if not report.consumers:
        return
    rows = [["consumer", "files", "quantized", "plain"]]
    for row in report.consumers:
        numbers = ["–" if row[key] is None else f"{row[key]:,}" for key in ("files", "quantized", "plain")]
        rows.append([f"{row['consumer']} {row['version']}", *numbers])
    wide = [max(len(row[column]) for row in rows) for column in range(4)]
    console.print()
    for cells, verdict in zip(rows, ["as stored?", *(row["agrees"] for row in report.consumers)], strict=True):
        head, *numbers = cells
        line = Text(
            "  "
            + head.ljust(wide[0])
            + "".join("  " + number.rjust(width) for number, width in zip(numbers, wide[1:], strict=True))
        )
        style = "" if verdict == "as stored?" else "green" if verdict == "yes" else "yellow"
        console.print(line.append("  ").append(printable(verdict), style))


def _not_run(console: Console, report: Report, names: dict[str, str], verbose: bool) -> None:
    """Say which rules could not say anything, reasons together; passed ones only when asked."""
    groups = [
        ("could not check", "bold red", report.other_reasons(report.crashed)),
        ("skipped", "dim", report.other_reasons(report.skipped)),
    ]
    if verbose:
        groups.append(("passed", "green", tuple((code, names.get(code, "")) for code in report.passed)))
    for label, style, entries in groups:
        reasons: dict[str, list[str]] = {}
        for code, reason in entries:
            reasons.setdefault(reason, []).append(code)
        for reason, codes in reasons.items():
            console.print()
            listed = ", ".join(codes[:4]) + (f" and {len(codes) - 4} more" if len(codes) > 4 else "")
            console.print(
                Padding(
                    Text.from_markup(f"[{style}]{label}[/] {escape(listed)}: {escape(printable(reason))}"),
                    (0, 0, 0, 2),
                    expand=False,
                )
            )


def describe_verdict(report: Report) -> str:
    """Return the last line of a report: the verdict, what it found, how many rules passed."""
    return _verdict(report).plain


def _verdict(report: Report) -> Text:
    numbers = [
        count(number, severity, "info" if severity == "info" else None)
        for severity in SEVERITIES
        if (number := report.count(severity))
    ]
    parts = [f"{count(len(report.passed), 'rule')} passed"] if report.passed or not report.error else []
    if report.skipped:
        parts.append(f"{len(report.skipped)} skipped")
    if report.known:
        parts.append(f"{count(report.known, 'known finding')} in the baseline")
    rest = " · ".join(parts)
    if report.verdict == "incomplete":
        why = report.error or f"{count(len(report.crashed), 'rule')} could not be checked"
        return Text.assemble(
            ("✗ incomplete: ", "bold red"),
            printable(why),
            *([", ", ", ".join(numbers)] if numbers else []),
            *([f" · {rest}"] if rest else []),
        )
    if report.verdict == "clean":
        headline = f" · {printable(report.headline)}" if report.headline else ""
        return Text.assemble(("✓ clean", "bold green"), f"{headline} · {rest}")
    sign = ("✗ ", "bold red") if report.count("error") else ("! ", "yellow")
    return Text.assemble(sign, (", ".join(numbers), "bold"), f" · {rest}")
