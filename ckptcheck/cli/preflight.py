"""``ckptcheck preflight JOB``: what will go wrong in an RL job, read from its configuration before it starts."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from ckptcheck.cli.scan import FailOn, Format


def preflight(
    job: Annotated[
        list[str],
        typer.Argument(
            metavar="JOB...",
            help="The job's .yaml, .toml or .sh file (several: in order), and key=value to lay over it.",
        ),
    ],
    framework: Annotated[
        str | None,
        typer.Option(
            help="verl, slime, nemo-rl, pipelinerl, roll, prime-rl, vllm or sglang.", show_default="found by the keys"
        ),
    ] = None,
    engine_version: Annotated[
        str,
        typer.Option(
            metavar="VERSION", help="Version of the engine, for its defaults.", show_default="as the files pin it"
        ),
    ] = "",
    te_version: Annotated[str, typer.Option(metavar="VERSION", help="Version of Transformer Engine.")] = "",
    scan_checkpoints: Annotated[
        bool,
        typer.Option("--scan/--no-scan", help="Read the headers of checkpoints that the job names and that are here."),
    ] = True,
    show_settings: Annotated[
        bool,
        typer.Option("--settings", help="Also list what was understood, each value with its place."),
    ] = False,
    select: Annotated[list[str], typer.Option(help="Run only these rules: codes or beginnings of codes.")] = [],  # noqa: B006
    ignore: Annotated[list[str], typer.Option(help="Leave these rules out; they are reported as skipped.")] = [],  # noqa: B006
    format: Annotated[Format, typer.Option(help="Form of the report.")] = Format.text,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE", help="Write the report to a file.")
    ] = None,
    fail_on: Annotated[FailOn, typer.Option(help="Exit 1 for findings of this severity or graver.")] = FailOn.error,
    verbose: Annotated[bool, typer.Option("-v", "--verbose", help="Also list the rules that passed.")] = False,
) -> None:
    """Read the configuration of an RL job and say what will go wrong, then how to check it on the real engine and trainer.

    Nothing is executed. Exit codes: 0 nothing graver than --fail-on, 1 findings, 2 the configuration cannot be read.
    """
    from ckptcheck import pack
    from ckptcheck.cli import output as out
    from ckptcheck.preflight.job import settings_section
    from ckptcheck.preflight.open import open_job
    from ckptcheck.run import run
    from ckptcheck.select import matching, selected

    rules = pack.load()
    ignored = {
        found.code: "ignored on the command line" for pattern in _codes(ignore) for found in matching(rules, pattern)
    }
    chosen = selected(rules, _codes(select))
    found = open_job(
        job, framework=framework, engine_version=engine_version, te_version=te_version, scan=scan_checkpoints
    )
    if show_settings:
        found.sections = (settings_section(found), *found.sections)
    report = run(found, chosen, ignored=ignored)
    out.deliver([report], rules, format.value, output, verbose=verbose)
    sys.stdout.flush()
    raise typer.Exit(report.exit_code(fail_on.value))


def _codes(values: list[str]) -> list[str]:
    return [code.strip() for value in values for code in value.split(",") if code.strip()]
