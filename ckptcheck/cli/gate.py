"""``ckptcheck gate JOB``: every check that a job can have before it starts, the cheapest first, within a deadline."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ckptcheck import api
from ckptcheck.cli.options import FailOn, Format, Output, Verbose, split_list


def gate(
    job: Annotated[
        list[str],
        typer.Argument(
            metavar="JOB...",
            help="A gate file (TOML with the key job), or the job's own .yaml, .toml, .sh or .py file; and key=value overrides.",
        ),
    ],
    deadline: Annotated[
        str | None,
        typer.Option(
            metavar="TIME", help="How long the gate may take: '10 min', '90 s'.", show_default="as the gate file says"
        ),
    ] = None,
    stages: Annotated[
        list[str],
        typer.Option(
            help="The stages that run: preflight, scan, refit, parity.", show_default="as the gate file says, else all"
        ),
    ] = [],  # noqa: B006
    go_on: Annotated[
        bool, typer.Option("--go-on", help="Run the dearer stages although a cheaper one has findings.")
    ] = False,
    folder: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Keeps what finished, for a gate that starts again.",
            show_default="one named after the file: train.gate",
        ),
    ] = None,
    model: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Check this copy of the checkpoint that the job names.", show_default="as the job says"
        ),
    ] = None,
    format: Format = "text",
    output: Output = None,
    fail_on: FailOn = "error",
    verbose: Verbose = False,
) -> None:
    """Check a job before it starts: its configuration, its checkpoints, a trial weight sync, and the first step's parity.

    Exit codes: 0 every stage passed, 1 findings (dearer stages are then left out), 2 a stage could not check, or did not fit into
    the deadline.
    """
    from ckptcheck.cli import output as out

    report = api.gate(
        *job, deadline=deadline, stages=split_list("--stages", stages), go_on=go_on or None, folder=folder, model=model,
        fail_on=fail_on, observer=out.TERMINAL,
    )  # fmt: skip
    out.finish(report, format, output, fail_on, verbose=verbose)
