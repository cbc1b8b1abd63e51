"""``ckptcheck refit history``: checks a record of weight syncs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ckptcheck import api
from ckptcheck.cli.options import FailOn, Format, Like, Output
from ckptcheck.errors import CkptcheckError, UsageError


def history(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="The record that refit --record or ckptcheck.watch wrote.")
    ],
    watch: Annotated[
        bool,
        typer.Option("--watch", help="Follow the record of a job that runs: report again at each sync, until Ctrl-C."),
    ] = False,
    saved: Annotated[
        str | None,
        typer.Option(
            metavar="CHECKPOINT",
            help="A checkpoint that the job saved: are its weights among those that were sent? (needs Watch(identity=…))",
        ),
    ] = None,
    like: Like = None,
    rollouts: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Rollouts of the job: did a sync give the engine each weight version that they carry?"
        ),
    ] = None,
    format: Format = "text",
    output: Output = None,
    fail_on: FailOn = "error",
    verbose: Annotated[
        bool, typer.Option("-v", "--verbose", help="Also list every changed tensor, and the rules that passed.")
    ] = False,
) -> None:
    """Say which tensors changed at each weight sync, what was never updated, and whether the version moved.

    Exit codes: 0 every sync did what it should, 1 findings, 2 the file cannot be read. With --watch, Ctrl-C ends the command with
    the code of the last report.
    """
    from ckptcheck.cli import output as out

    if watch:
        if saved is not None or rollouts is not None:
            raise UsageError("--saved and --rollouts have no effect with --watch", hint="give them without --watch")
        from ckptcheck.cli.history_page import follow

        report = follow(file, format, output, verbose=verbose)
        if report is None:
            raise CkptcheckError(f"{file} was never written", hint="the job writes it at its first sync")
        raise typer.Exit(report.exit_code(fail_on))
    report = api.history(
        file, saved=saved, like=like, rollouts=rollouts, pictures=out.shows_pictures(format), observer=out.TERMINAL
    )
    out.finish(report, format, output, fail_on, verbose=verbose)
