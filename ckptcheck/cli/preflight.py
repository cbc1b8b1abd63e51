"""``ckptcheck preflight JOB``: reads the configuration of an RL job and says what will go wrong, before it starts."""

from __future__ import annotations

from typing import Annotated

import typer

from ckptcheck import api
from ckptcheck.cli.options import FailOn, Format, Ignore, Output, Select, Verbose, split_list


def preflight(
    job: Annotated[
        list[str],
        typer.Argument(
            metavar="JOB...",
            help="The job's .yaml, .toml, .sh or .py file (several: in order), and key=value overrides.",
        ),
    ],
    framework: Annotated[
        str | None,
        typer.Option(
            help="verl, slime, nemo-rl, pipelinerl, roll, prime-rl, skyrl, areal, trl, openrlhf, ms-swift, open-instruct, vllm or"
            " sglang.",
            show_default="detected by the keys",
        ),
    ] = None,
    engine_version: Annotated[
        str,
        typer.Option(
            metavar="VERSION", help="Version of the engine, for its defaults.", show_default="as the files pin it"
        ),
    ] = "",
    te_version: Annotated[str, typer.Option(metavar="VERSION", help="Version of Transformer Engine.")] = "",
    framework_version: Annotated[
        str,
        typer.Option(
            metavar="VERSION",
            help="Release of the framework, or the date of its commit, for its defaults.",
            show_default="as the files pin it",
        ),
    ] = "",
    scan_checkpoints: Annotated[
        bool,
        typer.Option("--scan/--no-scan", help="Read the headers of checkpoints that the job names and that are here."),
    ] = True,
    show_settings: Annotated[
        bool,
        typer.Option(
            "--settings", help="Also list every setting, with its place, and what the job leaves to its engine."
        ),
    ] = False,
    here: Annotated[
        bool,
        typer.Option(
            "--here", help="The job will start on this machine: also check its paths, ports, disks and shared memory."
        ),
    ] = False,
    env: Annotated[
        list[str],
        typer.Option(
            metavar="NAME=VALUE",
            help="A variable that the job takes from its environment; 1=VALUE: the script's argument.",
        ),
    ] = [],  # noqa: B006
    select: Select = [],  # noqa: B006
    ignore: Ignore = [],  # noqa: B006
    format: Format = "text",
    output: Output = None,
    fail_on: FailOn = "error",
    verbose: Verbose = False,
) -> None:
    """Read the configuration of an RL job and say what will go wrong, then how to check it on the real engine and trainer.

    Nothing is executed. Exit codes: 0 nothing graver than --fail-on, 1 findings, 2 the configuration cannot be read.
    """
    from ckptcheck.cli import output as out

    report = api.preflight(
        *job, framework=framework, engine_version=engine_version, te_version=te_version,
        framework_version=framework_version, scan_checkpoints=scan_checkpoints, show_settings=show_settings, here=here,
        env=env,
        select=split_list("--select", select), ignore=split_list("--ignore", ignore), pictures=out.shows_pictures(format),
    )  # fmt: skip
    out.finish(report, format, output, fail_on, verbose=verbose)
