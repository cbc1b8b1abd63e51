"""The live page of ``refit history --watch``: a refreshed screen in a terminal, elsewhere a line for each sync."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from ckptcheck.cli import output as out
from ckptcheck.linter.report import Cell, Report
from ckptcheck.linter.rule import Finding
from ckptcheck.reporters.printable import printable
from ckptcheck.verbs.history import follow_history

CLEAR = "\x1b[H\x1b[2J\x1b[3J"
"""Moves to the top left corner of a terminal, and clears the screen and its scrollback."""
REFRESH = 5
"""Seconds after which a browser loads the page again, while a record is followed."""
SYNCS = "weight syncs"
"""Title of the section with a row for each sync."""


def follow(file: Path, outputs: Sequence[tuple[str, Path | None]], *, verbose: bool = False) -> Report | None:
    """Show the record of a job now and at each sync, until Ctrl-C. Return the last report, or None.

    outputs: (format, file) of each form; None: stdout. On a terminal the whole report is written anew. Elsewhere each sync is a
    line, and each finding once. With a file, or in another format than text, each report replaces the one before; a page of HTML
    reloads itself.
    """
    last: Report | None = None
    lines = SyncLines()
    is_shown = tuple(outputs) == (("text", None),)
    shows_page = is_shown and sys.stdout.isatty()
    if not file.exists():
        out.log(f"waiting for {file}")
    with suppress(KeyboardInterrupt):
        for report in follow_history(file, pictures=any(out.shows_pictures(form) for form, _ in outputs)):
            last = report
            if not is_shown:
                for form, output in outputs:
                    refresh = REFRESH if form == "html" else None
                    out.write_reports([report], report.rules, form, output, verbose=verbose, refresh=refresh)
            elif shows_page:
                sys.stdout.write(CLEAR)
                out.write_reports([report], report.rules, "text", None, verbose=verbose)
                sys.stdout.write(f"\n  following {printable(str(file))}; Ctrl-C ends\n")
            else:
                sys.stdout.writelines(f"{printable(line)}\n" for line in lines.list_new(report))
            sys.stdout.flush()
    return last


class SyncLines:
    """Turns reports on a growing record into lines, each sync and each finding once."""

    def __init__(self) -> None:
        self._last: tuple[Cell, ...] | None = None
        self._findings: set[Finding] = set()

    def list_new(self, report: Report) -> Iterator[str]:
        """Yield a line for each sync and each finding that no report before has had."""
        table = next(section for section in report.sections if section.title == SYNCS)
        rows = list(table.rows)
        # the file drops old syncs, and with them these numbers change
        fixed = [place for place, name in enumerate(table.columns) if name not in ("sync", "changed", "changed there")]
        keys = [tuple(row[place] for place in fixed) for row in rows]
        known = [number for number, key in enumerate(keys) if key == self._last]
        for row in rows[known[-1] + 1 :] if known else rows:
            cells = zip(table.columns, row, strict=True)
            yield " · ".join(f"{name} {_shorten(cell)}" for name, cell in cells if cell is not None and name != "sync")
        self._last = keys[-1] if keys else None
        for finding in report.findings:
            if finding not in self._findings:
                self._findings.add(finding)
                hint = f" → {finding.hint}" if finding.hint else ""
                yield f"{finding.severity} {finding.code} {finding.name}: {finding.message}{hint}"


def _shorten(cell: Cell) -> str:
    return f"{cell:.4g}" if isinstance(cell, float) else str(cell)
