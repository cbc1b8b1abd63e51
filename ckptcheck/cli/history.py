"""``ckptcheck refit history``: what the last weight syncs tell."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from ckptcheck.cli.scan import FailOn, Format


def history(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What refit --record or ckptcheck.watch wrote.")],
    format: Annotated[Format, typer.Option(help="Form of the report.")] = Format.text,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE", help="Write the report to a file.")
    ] = None,
    fail_on: Annotated[FailOn, typer.Option(help="Exit 1 for findings of this severity or graver.")] = FailOn.error,
    verbose: Annotated[
        bool, typer.Option("-v", "--verbose", help="Also list every changed tensor, and the rules that passed.")
    ] = False,
) -> None:
    """Say which tensors changed at each weight sync, what was never updated, and whether the version moved.

    Exit codes: 0 every sync did what it should, 1 findings, 2 the file cannot be read.
    """
    from ckptcheck import pack
    from ckptcheck.cli import output as out
    from ckptcheck.history.history import open_history
    from ckptcheck.run import run

    rules = pack.load()
    report = run(open_history(file), rules)
    out.deliver([report], rules, format.value, output, verbose=verbose)
    sys.stdout.flush()
    raise typer.Exit(report.exit_code(fail_on.value))
