"""The report for a person: what is wrong, where, and what to do next, gravest first."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Sequence
from typing import IO, Literal

from msgspec import structs

from ckptcheck.linter.report import Report, describe_reading, only_informs
from ckptcheck.linter.rule import SEVERITIES, Finding, Rule
from ckptcheck.reporters import tables
from ckptcheck.reporters.line_printer import LinePrinter, Piece, join_pieces
from ckptcheck.reporters.locations import path_of
from ckptcheck.reporters.printable import printable
from ckptcheck.text.formatting import count, join_truncated

STYLE = {"error": "bold red", "warning": "yellow", "info": "cyan"}
INFORMED: Piece = ("ℹ ", "bold cyan")
"""The sign of a verdict where nothing is wrong and something is worth knowing: also that nothing was compared."""
MOST_PER_RULE = 5
"""Findings of one rule that are shown in full; --format json has them all."""
MOST_GROUPS, MOST_REASONS = 3, 2
"""Kinds of findings in the parts of a whole that are shown in full, and reasons why rules did not run there, so that a page holds
them."""
MOST_NAMED = 5
"""Targets that the last line on several names."""
MOST_CODES = 5
"""Rules that the line on several reports names."""


def write(
    reports: Sequence[Report], rules: Sequence[Rule], stream: IO[str], *, verbose: bool = False, quiet: bool = False
) -> None:
    """Write the reports to a stream, in colour if it is a terminal.

    verbose: list what passed as well. quiet: write the verdicts only.
    """
    lines = LinePrinter(stream)
    if quiet:
        _verdicts(lines, reports)
        return
    place = next((place for place, report in enumerate(reports) if report.parts), None)
    if place is not None:
        _run(lines, reports[place:], reports[:place], verbose)
        if not verbose:
            return
        lines.print()
        reports = reports[:place]
    if len(reports) == 1:
        _one(lines, reports[0], verbose)
        return
    short, was_long = [], False
    told: dict[Finding, str] = {}
    for number, report in enumerate(reports):
        grave = [finding for finding in report.findings if finding.severity != "info"]
        is_new = any(finding not in told for finding in grave) or report.verdict == "incomplete"
        is_long = verbose or is_new or bool(report.consumers)
        if number and (is_long or was_long):
            lines.print()
        was_long = is_long
        if is_long:
            _one(lines, report, verbose, None if verbose else told)
        else:
            short.append(report)
            note = f", as in {printable(join_truncated({told[finding] for finding in grave}))}" if grave else ""
            lines.print((printable(report.target), "bold"), "  ", *_verdict(report, _name_rules(report) + note))
    _outcomes(lines, short, _count_targets(reports))
    lines.print()
    lines.print(*_verdict_of_several(reports))


def _run(lines: LinePrinter, wholes: Sequence[Report], parts: Sequence[Report], verbose: bool) -> None:
    """Print the reports on a whole, and what was found in its parts: each kind once, with the parts that it is about."""
    reports, labels = (*wholes, *parts), wholes[0].parts
    number = count(len(parts), "file")
    lines.print((printable(wholes[0].target), "bold"))
    for whole in wholes:
        lines.print((printable(whole.subject), "dim"))
    grave = any(report.count("error") or report.verdict == "incomplete" for report in reports)
    sign: Piece = ("✗ ", "bold red") if grave else ("✓ ", "bold green")
    if not grave and any(report.findings for report in reports):
        sign = ("! ", "yellow") if any(report.count("warning") for report in reports) else INFORMED
    lines.print(sign, (summarize(wholes, parts), "bold"))
    told = sorted(
        (whole for whole in wholes if whole.findings), key=lambda whole: SEVERITIES.index(whole.findings[0].severity)
    )
    for whole in told:
        _findings(lines, whole)
    groups = group_findings(parts, labels)
    for place, (finding, places) in enumerate(groups):
        where = f"in {len(places):,} of {number}: {join_labels(places, labels)}"
        _finding(lines, finding, where, is_short=place >= MOST_GROUPS and not verbose)
    _outcomes(lines, parts, number)
    for whole in wholes:
        _not_run(lines, whole, verbose)
        for section in whole.sections:
            # what is compared with another whole has its own table there
            if verbose or not (section.is_idle or section.brief or (section.shorter and len(wholes) > 1)):
                tables.write(lines, section, verbose=verbose)
    lines.print()
    firsts = [whole.findings[0] for whole in told] or [finding for finding, _ in groups]
    if firsts:
        lines.print((f"  ckptcheck rule {firsts[0].code} explains the first one", "dim"))
    if not verbose:
        lines.print(("  -v prints every file; -o FILE.html draws the curves", "dim"))


def _outcomes(lines: LinePrinter, parts: Sequence[Report], number: str) -> None:
    """Print why rules could not check some of several reports, each reason once. number: of all reports, with their noun."""
    for label, style, outcomes in (
        ("could not check", "bold red", group_outcomes(parts, "crashed")),
        ("skipped", "dim", group_outcomes(parts, "skipped")),
    ):
        for reason, codes, files in outcomes[:MOST_REASONS]:
            lines.print()
            listed = f" {', '.join(codes)}" if codes else ""
            lines.print((label, style), f"{listed} in {files:,} of {number}: {printable(reason)}", indent=2)
        if len(outcomes) > MOST_REASONS:
            lines.print((f"{label} for {count(len(outcomes) - MOST_REASONS, 'more reason')}", "dim"), indent=2)


def write_findings(report: Report, stream: IO[str], told: dict[Finding, str] | None = None) -> None:
    """Write the findings of a report alone, and an empty line. told: see `_one`."""
    lines = LinePrinter(stream)
    _findings(lines, report, told)
    lines.print()


def summarize(wholes: Sequence[Report], parts: Sequence[Report]) -> str:
    """Return one line on a run: the verdicts of its files, the rules that found most often, and those that found in the whole."""
    verdicts: Counter[str] = Counter(report.verdict for report in parts)
    words = {"clean": "clean", "findings": "with findings", "incomplete": "incomplete"}
    outcome = ", ".join(f"{verdicts[verdict]} {word}" for verdict, word in words.items() if verdicts[verdict])
    codes = Counter(code for report in parts for code in dict.fromkeys(each.code for each in report.findings))
    found = ", ".join(f"{code} in {number}" for code, number in codes.most_common(MOST_CODES))
    more = f" and {count(len(codes) - MOST_CODES, 'more rule')}" if len(codes) > MOST_CODES else ""
    over_all = join_truncated({each.code for whole in wholes for each in whole.findings})
    if any(whole.verdict == "incomplete" for whole in wholes):
        over_all = f"{over_all}, incomplete" if over_all else "incomplete"
    pieces = [
        f"{count(len(parts), 'file')}: {outcome}",
        f"{found}{more}",
        f"over the run: {over_all}" if over_all else "",
    ]
    return " · ".join(filter(None, pieces))


def render(reports: Sequence[Report], rules: Sequence[Rule]) -> str:
    """Return the reports as a text without colours."""
    stream = io.StringIO()
    write(reports, rules, stream)
    return stream.getvalue().rstrip("\n")


def _verdicts(lines: LinePrinter, reports: Sequence[Report]) -> None:
    """Print a line for each report, and for several the last one."""
    for report in reports:
        name = ((printable(report.target), "bold"), "  ") if len(reports) > 1 else ()
        lines.print(*name, *_verdict(report, _name_rules(report) if len(reports) > 1 else ""))
    if len(reports) > 1:
        lines.print(*_verdict_of_several(reports))


def _verdict_of_several(reports: Sequence[Report]) -> list[Piece]:
    """Return the last line on several reports: how many are how, the gravest first, and which these are."""
    kinds: tuple[tuple[Piece, str, list[Report]], ...] = (
        (("✗ ", "bold red"), "could not be checked", [each for each in reports if each.verdict == "incomplete"]),
        (("✗ ", "bold red"), "has errors", [each for each in reports if each.count("error")]),
        (
            ("! ", "yellow"),
            "has warnings",
            [each for each in reports if each.count("warning") and not each.count("error")],
        ),
    )
    told = [(sign, what, kind) for sign, what, kind in kinds if kind]
    if not told:
        if any(each.findings for each in reports):
            return [INFORMED, (f"{_count_targets(reports)}: no errors or warnings", "bold")]
        return [("✓ ", "bold green"), (f"all {_count_targets(reports)} are clean", "bold")]
    parts = []
    for _, what, kind in told:
        verb = what if len(kind) == 1 else what.replace("has ", "have ", 1)
        named = ", ".join(printable(each.target) for each in kind[:MOST_NAMED])
        more = f" and {len(kind) - MOST_NAMED:,} more" if len(kind) > MOST_NAMED else ""
        parts.append(f"{len(kind):,} of {_count_targets(reports)} {verb}: {named}{more}")
    return [told[0][0], (" · ".join(parts), "bold")]


def _count_targets(reports: Sequence[Report]) -> str:
    """Return the number of targets with their noun."""
    return count(len(reports), "checkpoint" if any(report.counts.get("tensors") for report in reports) else "target")


def describe_verdicts(reports: Sequence[Report]) -> str:
    """Return the last line on one report or several."""
    return describe_verdict(reports[0]) if len(reports) == 1 else join_pieces(_verdict_of_several(reports))


def _one(lines: LinePrinter, report: Report, verbose: bool, told: dict[Finding, str] | None = None) -> None:
    """Print a report. told: finding → the target before this one that has it too; those of this one are added."""
    lines.print((printable(report.target), "bold"))
    if report.subject:
        lines.print((printable(report.subject), "dim"))
    _reading(lines, report)
    _findings(lines, report, told)
    _not_run(lines, report, verbose)
    _consumers(lines, report)
    for section in report.sections:
        if verbose or not section.is_idle:
            tables.write(lines, section, verbose=verbose)
    lines.print()
    lines.print(*_verdict(report))
    if report.other_reasons(report.crashed) != report.crashed:
        lines.print(("  fix this first: until then no rule can pass", "dim"))
    explained = f"ckptcheck rule {report.findings[0].code} explains the first one" if report.findings else ""
    if steps := [step for step in (explained, printable(report.next_step)) if step]:
        lines.print(("  " + "; ".join(steps), "dim"))


def _findings(lines: LinePrinter, report: Report, told: dict[Finding, str] | None = None) -> None:
    shown: dict[str, int] = {}
    told = {} if told is None else told
    was_short = False
    for finding in report.findings:
        before = told.setdefault(finding, report.target)
        shown[finding.code] = shown.get(finding.code, 0) + 1
        if shown[finding.code] > MOST_PER_RULE:
            continue
        if before != report.target:
            if not was_short:
                lines.print()
            was_short = True
            _finding(lines, finding, f"as in {printable(before)}", is_short=True)
            continue
        was_short = False
        # A file that people write is named as they name it from the working folder.
        is_written = finding.line is not None and finding.file is not None
        _finding(lines, structs.replace(finding, file=path_of(report.target, finding.file)) if is_written else finding)
    for code, number in shown.items():
        if number > MOST_PER_RULE:
            more = f"… and {count(number - MOST_PER_RULE, 'more finding')} of {code}; --format json lists them all"
            lines.print()
            lines.print((more, "dim"), indent=2)


def _reading(lines: LinePrinter, report: Report) -> None:
    """Print what was read, before what was found in it."""
    rows = describe_reading(report)
    wide = max((len(label) for label, _ in rows), default=0)
    if rows:
        lines.print()
    for label, text in rows:
        lines.print("  ", (label.ljust(wide), "dim"), "  ", printable(text), wrap=False)


def _finding(lines: LinePrinter, finding: Finding, where: str = "", *, is_short: bool = False) -> None:
    """Print a finding. where: the parts of a whole that have one of this rule, of which this is the first.

    is_short: print its first line alone.
    """
    if not is_short:
        lines.print()
    severity = (f"{finding.severity:<7}", STYLE[finding.severity])
    lines.print("  ", severity, (f" {finding.code} ", "bold"), (finding.name, "dim"), f"  {where}" if where else "")
    if is_short:
        return
    if finding.place:
        lines.print((printable(finding.place), "underline"), indent=10)
    lines.print(printable(finding.message), indent=10)
    if finding.hint:
        lines.print(("→ " + printable(finding.hint), "green"), indent=10)


def _consumers(lines: LinePrinter, report: Report) -> None:
    """Print what each consumer makes of it."""
    if not report.consumers:
        return
    rows = [["consumer", "files", "quantized", "plain"]]
    for row in report.consumers:
        numbers = ["–" if row[key] is None else f"{row[key]:,}" for key in ("files", "quantized", "plain")]
        rows.append([f"{row['consumer']} {row['version']}", *numbers])
    wide = [max(len(row[column]) for row in rows) for column in range(4)]
    lines.print()
    for cells, verdict in zip(rows, ["as stored?", *(row["agrees"] for row in report.consumers)], strict=True):
        head, *numbers = cells
        columns = [head.ljust(wide[0]), *(number.rjust(w) for number, w in zip(numbers, wide[1:], strict=True))]
        style = "" if verdict == "as stored?" else "green" if verdict == "yes" else "yellow"
        lines.print(f"  {'  '.join(columns)}  ", (printable(verdict), style))


def _not_run(lines: LinePrinter, report: Report, verbose: bool) -> None:
    """Say which rules could not say anything, reasons together; passed ones by family, only when asked."""
    groups = [
        ("could not check", "bold red", report.other_reasons(report.crashed)),
        ("skipped", "dim", report.other_reasons(report.skipped)),
    ]
    for label, style, entries in groups:
        reasons: dict[str, list[str]] = {}
        for code, reason in entries:
            reasons.setdefault(reason, []).append(code)
        for reason, codes in reasons.items():
            lines.print()
            listed = ", ".join(codes[:4]) + (f" and {len(codes) - 4} more" if len(codes) > 4 else "")
            lines.print((label, style), f" {listed}: {printable(reason)}", indent=2)
    if verbose and report.passed:
        families = Counter(code.rstrip("0123456789") for code in report.passed)
        listed = " · ".join(f"{family} {number}" for family, number in families.items())
        lines.print()
        lines.print(("passed", "green"), f" {listed}; ckptcheck rules lists them", indent=2)


def describe_verdict(report: Report) -> str:
    """Return the last line of a report: the verdict, what it found, how many rules passed."""
    return join_pieces(_verdict(report))


def _name_rules(report: Report) -> str:
    """Name the rules that found something."""
    return join_truncated({finding.code for finding in report.findings})


def _verdict(report: Report, note: str = "") -> list[Piece]:
    """Return the last line. note: on the findings, where they are not shown."""
    note = f" ({note})" if note and report.findings else ""
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
        why = report.error or f"{join_truncated([code for code, _ in report.crashed])} could not be checked"
        found = f", {', '.join(numbers)}" if numbers else ""
        return [("✗ incomplete: ", "bold red"), printable(why), found + (f" · {rest}" if rest else "")]
    headline = f" · {printable(report.headline)}" if report.headline else ""
    if report.verdict == "clean":
        return [("✓ clean", "bold green"), f"{headline} · {rest}"]
    if only_informs(report):
        return [INFORMED, ("no errors or warnings", "bold"), f"{headline} · {numbers[0]}{note} · {rest}"]
    sign = ("✗ ", "bold red") if report.count("error") else ("! ", "yellow")
    return [sign, (", ".join(numbers), "bold"), f"{note} · {rest}"]


def group_findings(parts: Sequence[Report], labels: Sequence[str]) -> list[tuple[Finding, list[int]]]:
    """Return for each rule and severity its first finding and the places of the reports that have one, gravest first.

    labels: of the reports; that of its own begins the key of the finding.
    """
    groups: dict[tuple[str, str], tuple[Finding, dict[int, None]]] = {}
    for place, report in enumerate(parts):
        for finding in report.findings:
            key = " · ".join(filter(None, (labels[place], finding.key)))
            groups.setdefault((finding.code, finding.severity), (structs.replace(finding, key=key), {}))[1][place] = (
                None
            )
    found = [(finding, list(places)) for finding, places in groups.values()]
    return sorted(found, key=lambda group: (SEVERITIES.index(group[0].severity), -len(group[1])))


def group_outcomes(parts: Sequence[Report], outcome: Literal["skipped", "crashed"]) -> list[tuple[str, list[str], int]]:
    """Return (reason, codes of the rules, number of reports) of rules that did not run, the commonest first."""
    groups: dict[str, tuple[dict[str, None], set[int]]] = {}
    for place, report in enumerate(parts):
        reasons = [*report.other_reasons(getattr(report, outcome))]
        if outcome == "crashed" and report.error:
            reasons.append(("", report.error))
        for code, reason in reasons:
            codes, places = groups.setdefault(reason, ({}, set()))
            places.add(place)
            codes |= {code: None} if code else {}
    found = [(reason, list(codes), len(places)) for reason, (codes, places) in groups.items()]
    return sorted(found, key=lambda group: -group[2])


def join_labels(places: Sequence[int], labels: Sequence[str], most: int = 4) -> str:
    """Join the labels of places: three and more that follow each other as ``first to last``; a word for what is beyond `most`.

    >>> join_labels([0, 2, 3, 4], ["a", "b", "c", "d", "e"])
    'a, c to e'
    """
    runs: list[list[int]] = []
    for place in places:
        if runs and place == runs[-1][-1] + 1:
            runs[-1].append(place)
        else:
            runs.append([place])
    words: list[str] = []
    for run in runs:
        words += [f"{labels[run[0]]} to {labels[run[-1]]}"] if len(run) > 2 else [labels[place] for place in run]
    return f"{', '.join(words[:most])} and more" if len(words) > most else ", ".join(words)
