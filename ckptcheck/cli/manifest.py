"""``ckptcheck manifest`` records every tensor of a checkpoint, ``ckptcheck verify`` says what has changed since."""

from __future__ import annotations

from typing import Annotated

import typer

from ckptcheck import api
from ckptcheck.cli.join import write_part
from ckptcheck.cli.options import (
    FailOn,
    FollowLinks,
    Format,
    Like,
    On,
    Output,
    OutputFile,
    Part,
    Target,
    TensorJobs,
    WrittenOptions,
    find_runner,
)


def manifest(
    ctx: typer.Context,
    target: Target,
    output: OutputFile,
    like: Like = None,
    follow_links: FollowLinks = False,
    jobs: TensorJobs = None,
    part: Part = None,
    on: On = None,
) -> None:
    """Write dtype, shape and digest (xxh3-128) of every tensor to a file, and the identity of the weights."""
    from ckptcheck.cli import output as out

    if part is not None:
        write_part(WrittenOptions(ctx), "manifest", [target], part, output, jobs, like=like, follow_links=follow_links)
    runner = find_runner(on)
    api.manifest(target, output, like=like, follow_links=follow_links, jobs=jobs, runner=runner, observer=out.TERMINAL)


def verify(
    ctx: typer.Context,
    target: Target,
    manifest: Annotated[
        str, typer.Argument(metavar="MANIFEST", help="The file that ckptcheck manifest wrote, or its s3:// address.")
    ],
    like: Like = None,
    follow_links: FollowLinks = False,
    format: Format = "text",
    output: Output = None,
    fail_on: FailOn = "error",
    jobs: TensorJobs = None,
    part: Part = None,
    on: On = None,
) -> None:
    """Say which tensors changed, moved or vanished since a manifest was written.

    Exit codes: 0 the same, 1 findings at or above --fail-on, 2 could not verify.
    """
    from ckptcheck.cli import output as out

    if part is not None:
        unused = ("format", "fail_on")
        write_part(
            WrittenOptions(ctx),
            "verify",
            [target, manifest],
            part,
            output,
            jobs,
            unused,
            like=like,
            follow_links=follow_links,
        )
    report = api.verify(
        target,
        manifest,
        like=like,
        follow_links=follow_links,
        jobs=jobs,
        runner=find_runner(on),
        observer=out.TERMINAL,
    )
    out.finish(report, format, output, fail_on)
