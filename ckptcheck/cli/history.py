"""``ckptcheck refit history``: what the last weight syncs tell."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ckptcheck.cli.scan import FailOn, Format

if TYPE_CHECKING:
    from ckptcheck.history.history import History

SHOWN = 20
"""Syncs of the table: the last ones; all with -v."""


def history(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What refit --record or ckptcheck.watch wrote.")],
    format: Annotated[Format, typer.Option(help="Form of the report.")] = Format.text,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE", help="Write the report to a file.")
    ] = None,
    fail_on: Annotated[FailOn, typer.Option(help="Exit 1 for findings of this severity or graver.")] = FailOn.error,
    verbose: Annotated[
        bool, typer.Option("-v", "--verbose", help="Show every sync, and the rules that passed.")
    ] = False,
) -> None:
    """Say which tensors changed at each weight sync, what was never updated, and whether the version moved.

    Exit codes: 0 every sync did what it should, 1 findings, 2 the file cannot be read.
    """
    from ckptcheck import pack
    from ckptcheck.cli import output as out
    from ckptcheck.history.history import open_history
    from ckptcheck.run import run

    found = open_history(file)
    rules = pack.load()
    report = run(found, rules)
    if format is Format.text and output is None:
        _table(found, None if verbose else SHOWN)
    out.deliver([report], rules, format.value, output, verbose=verbose)
    sys.stdout.flush()
    raise typer.Exit(report.exit_code(fail_on.value))


def _table(history: History, most: int | None) -> None:
    """Print a line for each sync: what was sent, how much of it changed, and what the engine made of it."""
    from rich.console import Console
    from rich.table import Table

    from ckptcheck.phrase import few, size
    from ckptcheck.reporters.printable import printable
    from ckptcheck.reporters.text import width_for

    console = Console(highlight=False, width=width_for(sys.stdout))
    table = Table(box=None, pad_edge=False, header_style="dim")
    for head in ("sync", "step", "version", "loss", "sent", "changed", "in the engine", "bytes", "took", "check"):
        table.add_column(head, justify="left" if head == "version" else "right", no_wrap=True)
    turns = {turn.index: turn for turn in history.turns}
    first = max(0, len(history.syncs) - most) if most is not None else 0
    for index, sync in list(enumerate(history.syncs))[first:]:
        turn = turns.get(index)
        table.add_row(
            str(index + 1),
            "" if sync.step is None else str(sync.step),
            printable(sync.version or ""),
            "" if sync.loss is None else f"{sync.loss:.4g}",
            f"{len(sync.sent):,}",
            f"{len(turn.moved):,}" if turn and sync.sent else "–",
            f"{len(turn.turned):,} of {len(sync.held):,}" if turn and sync.held else "–",
            size(sync.nbytes) if sync.nbytes else "",
            f"{sync.seconds:.2f} s" if sync.seconds else "",
            f"{sync.checked:.2f} s" if sync.checked else "",
        )
    if first:
        console.print(f"the last {most} of {len(history.syncs)} syncs; -v shows all", style="dim")
    console.print(table)
    if history.steps and history.never:
        total = len(history.syncs[-1].sent)
        console.print(f"never changed: {len(history.never):,} of {total:,}: {printable(few(history.never))}")
    console.print()
