"""Sections of a report as a person reads them: aligned columns, numbers to the right, lines as they are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckptcheck.reporters.printable import printable

if TYPE_CHECKING:
    from ckptcheck.linter.report import Cell, Section
    from ckptcheck.reporters.line_printer import LinePrinter


NEAR = 5e-4
"""Nearer to 1 than this, four digits show only 1, the usual ratio of a sound run, so seven are shown."""


def write(lines: LinePrinter, section: Section, *, verbose: bool = False) -> None:
    """Print one section, two spaces in. Tables and lines are not wrapped, so that they stay aligned and commands can be copied.

    verbose: print the table also if something shorter replaces it.
    """
    if section.shorter is not None and not verbose:
        section = section.shorter
    lines.print()
    lines.print((printable(section.title), "bold"), indent=2)
    brief = () if verbose and section.rows else section.brief
    if section.columns and not brief:
        shown = [[cell(value) for value in row] for row in section.rows]
        wide = [max(map(len, column)) for column in zip(section.columns, *shown, strict=True)]
        right = [any(isinstance(row[at], int | float) for row in section.rows) for at in range(len(wide))]
        for row, style in [(list(section.columns), "dim"), *((row, "") for row in shown)]:
            cells = [text.rjust(w) if r else text.ljust(w) for text, w, r in zip(row, wide, right, strict=True)]
            lines.print(("  " + "  ".join(cells).rstrip(), style), wrap=False)
    for line in brief:
        lines.print(printable(line), indent=2)
    for line in section.lines:
        lines.print(f"  {printable(line)}", wrap=False)


def cell(value: Cell) -> str:
    """Return a cell as it is shown: four significant digits, seven next to 1, thousands set apart, a dash for nothing.

    >>> cell(None), cell(1234567), cell(0.000123456), cell(1.0), cell(1.0000034)
    ('–', '1,234,567', '0.0001235', '1', '1.000003')
    """
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:.7g}" if abs(value - 1) < NEAR else f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) else printable(value)
