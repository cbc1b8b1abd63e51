"""``--part I/N`` computes a part of a verb on one machine; ``ckptcheck join`` makes the report of all parts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, NoReturn

import typer

from ckptcheck import api
from ckptcheck.cli.options import Format, Verbose, WrittenOptions, require_file
from ckptcheck.errors import UsageError
from ckptcheck.linter.report import FailOn


def write_part(
    written: WrittenOptions,
    verb: api.PartVerb,
    targets: Sequence[str],
    part: str,
    folder: str | None,
    jobs: int | None,
    unused: Sequence[str] = (),
    **options: Any,
) -> NoReturn:
    """Compute a part, write it to a folder, and end the command.

    unused: options of the verb that have no effect on a part. Raises CkptcheckError.
    """
    from ckptcheck.cli import output as out

    written.reject([*unused, "on"], "with --part: ckptcheck join makes the report")
    if folder is None:
        raise UsageError("--part needs the folder of all parts", hint="give it with -o")
    api.write_part(verb, *targets, part=part, folder=folder, jobs=jobs, observer=out.TERMINAL, **options)
    raise typer.Exit(0)


def join(
    folder: Annotated[
        str, typer.Argument(metavar="FOLDER", help="The folder, or s3:// address, that --part wrote to with -o.")
    ],
    format: Format = "text",
    output: Annotated[
        str | None,
        typer.Option(
            "-o", "--output", metavar="FILE", help="Write the report to a file; a manifest also to an s3:// address."
        ),
    ] = None,
    fail_on: Annotated[
        FailOn | None,
        typer.Option(help="Exit with 1 on findings of this severity or a worse one.", show_default="error"),
    ] = None,
    trust_parts: Annotated[
        bool,
        typer.Option(
            help="Take options from the parts that run code, write files or say whom to trust: --rules, --config, --stats."
        ),
    ] = False,
    jobs: Annotated[int | None, typer.Option(min=1, help="Files read at a time.", show_default="cores")] = None,
    verbose: Verbose = False,
) -> None:
    """Make the report, or the manifest, of parts that several machines computed.

    Exit codes: those of the verb; 2 where a part is missing, doubled, or of something else.
    """
    from ckptcheck.cli import output as out
    from ckptcheck.linter.report import Reports

    joined = api.join(
        folder, output, trust_parts=trust_parts, jobs=jobs, pictures=out.shows_pictures(format), observer=out.TERMINAL
    )
    if isinstance(joined, Reports):
        out.finish(joined, format, require_file(output), fail_on, verbose=verbose)
    if output is None:
        raise UsageError("the parts are of a manifest, which needs a file", hint="name it with -o")
