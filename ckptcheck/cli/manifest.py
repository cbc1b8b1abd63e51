"""``ckptcheck manifest`` records every tensor of a checkpoint, ``ckptcheck verify`` says what has changed since."""

from __future__ import annotations

from typing import Annotated

import typer

from ckptcheck import api
from ckptcheck.cli.options import FailOn, FollowLinks, Format, Output, OutputFile, Target, TensorJobs


def manifest(target: Target, output: OutputFile, follow_links: FollowLinks = False, jobs: TensorJobs = None) -> None:
    """Write dtype, shape and digest (xxh3-128) of every tensor to a file."""
    from ckptcheck.cli import output as out

    api.manifest(target, output, follow_links=follow_links, jobs=jobs, observer=out.TERMINAL)


def verify(
    target: Target,
    manifest: Annotated[
        str, typer.Argument(metavar="MANIFEST", help="The file that ckptcheck manifest wrote, or its s3:// address.")
    ],
    follow_links: FollowLinks = False,
    format: Format = "text",
    output: Output = None,
    fail_on: FailOn = "error",
    jobs: TensorJobs = None,
) -> None:
    """Say which tensors changed, moved or vanished since a manifest was written.

    Exit codes: 0 the same, 1 findings at or above --fail-on, 2 could not verify.
    """
    from ckptcheck.cli import output as out

    report = api.verify(target, manifest, follow_links=follow_links, jobs=jobs, observer=out.TERMINAL)
    out.finish(report, format, output, fail_on)
