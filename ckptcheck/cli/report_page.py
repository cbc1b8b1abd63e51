"""``ckptcheck report FILE… -o page.html`` makes one page of saved reports."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ckptcheck import api
from ckptcheck.cli.options import OutputFile


def report(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE", help="Reports of --format json-with-pictures, or json, in the order of the page."
        ),
    ],
    output: OutputFile,
    svg: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Also write heat maps, curves and histograms as SVG files.")
    ] = None,
) -> None:
    """Write one HTML page from saved JSON reports: a fleet of checkpoints, the steps of a run.

    Exit codes: 0 written, 2 a file is no report. --format json keeps no pictures, json-with-pictures does.
    """
    from ckptcheck.cli.output import log

    api.write_page(list(files), output, svg=svg)
    log(f"the page is {output}" + (f", and its pictures are in {svg}" if svg is not None else ""))
