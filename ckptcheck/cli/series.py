"""``ckptcheck series`` compares the saves of one run with each other."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ckptcheck import api
from ckptcheck.cli.options import FailOn, FollowLinks, Format, Output, TensorJobs, Verbose


def series(
    runs: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN...",
            help="The folder above iter_0000100, checkpoint-100 or global_step_100, or some of those; also s3://bucket/run (gs://, az://).",
        ),
    ],
    like: Annotated[
        str | None,
        typer.Option(
            metavar="CHECKPOINT",
            help="A Hugging Face checkpoint of the same model: its config says what Megatron's tensors are called there.",
        ),
    ] = None,
    history: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="The record that ckptcheck.watch kept: a save equals what the live trainer held."
        ),
    ] = None,
    resumed: Annotated[
        str | None,
        typer.Option(
            metavar="RUN", help="What was saved right after the run was loaded elsewhere, on another grid: it is equal."
        ),
    ] = None,
    cache: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Keep what was read in this file, and read only saves that are new or were replaced."
        ),
    ] = None,
    follow_links: FollowLinks = False,
    format: Format = "text",
    output: Output = None,
    fail_on: FailOn = "error",
    verbose: Verbose = False,
    jobs: TensorJobs = None,
) -> None:
    """Say whether the saves of one run follow each other: what moved, what repeats, whether counters agree and the last is whole.

    Exit codes: 0 clean, 1 findings at or above --fail-on, 2 nothing could be compared.
    """
    from ckptcheck.cli import output as out

    report = api.series(
        runs,
        like=like,
        history=history,
        resumed=resumed,
        cache=cache,
        follow_links=follow_links,
        jobs=jobs,
        pictures=out.shows_pictures(format),
        observer=out.TERMINAL,
    )
    out.finish(report, format, output, fail_on, verbose=verbose)
