"""``ckptcheck diff A B``: compares two checkpoints and says why they differ."""

from __future__ import annotations

from typing import Annotated

import typer

from ckptcheck import api
from ckptcheck.cli.join import write_part
from ckptcheck.cli.options import (
    TARGET_FORMS,
    FailOn,
    FollowLinks,
    Format,
    On,
    Part,
    ReportOrParts,
    Verbose,
    WrittenOptions,
    find_runner,
    finite,
    require_file,
)


def diff(
    ctx: typer.Context,
    first: Annotated[str, typer.Argument(metavar="A", help=f"The reference. {TARGET_FORMS}")],
    second: Annotated[str, typer.Argument(metavar="B", help="The checkpoint to compare with it.")],
    cast: Annotated[
        str,
        typer.Option(
            help="Compare in this dtype (bf16, fp16, fp32); auto: the one that B's config declares, else none; none."
        ),
    ] = "auto",
    rtol: Annotated[float, typer.Option(callback=finite, help="Relative tolerance, of A's numbers.")] = 0.0,
    atol: Annotated[float, typer.Option(callback=finite, help="Absolute tolerance.")] = 0.0,
    previous: Annotated[
        str | None,
        typer.Option(
            metavar="C",
            help="The version before A, where B should have been updated to A: tensors that B still has of C are stale.",
        ),
    ] = None,
    base: Annotated[
        str | None,
        typer.Option(
            metavar="BASE",
            help="A is a LoRA adapter: compare B with BASE after A is merged into it. A is a whole model: like --previous.",
        ),
    ] = None,
    critic: Annotated[
        bool, typer.Option("--critic", help="One side is a critic: only the heads may be missing or extra.")
    ] = False,
    bridge: Annotated[
        api.Bridge,
        typer.Option(help="Map Megatron's tensors by the built-in tables, by mbridge, or compare both mappings."),
    ] = "builtin",
    follow_links: FollowLinks = False,
    format: Format = "text",
    output: ReportOrParts = None,
    fail_on: FailOn = "error",
    jobs: Annotated[int | None, typer.Option(min=1, help="Threads that compare.", show_default="cores")] = None,
    part: Part = None,
    on: On = None,
    verbose: Verbose = False,
) -> None:
    """Compare two checkpoints tensor by tensor: bit for bit, across layouts, and say why they differ.

    Exit codes: 0 equal, 1 different, 2 could not compare.
    """
    from ckptcheck.cli import output as out

    if part is not None:
        write_part(
            WrittenOptions(ctx), "diff", [first, second], part, output, jobs, ("format", "fail_on", "verbose"), cast=cast,
            rtol=rtol, atol=atol, previous=previous, base=base, critic=critic, bridge=bridge, follow_links=follow_links,
        )  # fmt: skip
    file = require_file(output)
    report = api.diff(
        first, second, cast=cast, rtol=rtol, atol=atol, previous=previous, base=base, critic=critic, bridge=bridge,
        follow_links=follow_links, jobs=jobs, runner=find_runner(on), pictures=out.shows_pictures(format), observer=out.TERMINAL,
    )  # fmt: skip
    out.finish(report, format, file, fail_on, verbose=verbose)
