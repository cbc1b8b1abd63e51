"""``ckptcheck report``: makes one page of saved reports."""

from pathlib import Path
from typing import Annotated

from ckptcheck.errors import CkptcheckError
from ckptcheck.text.observer import SILENT, Observer
from ckptcheck.verbs.options import Argument, Option, Paths, StrPath
from ckptcheck.verbs.parameter import several
from ckptcheck.verbs.verb import verb


@verb()
def write_page(
    files: Annotated[
        Paths,
        Argument("Reports of --format json-with-pictures, or json, in the order of the page.", metavar="FILE..."),
    ],
    output: Annotated[StrPath, Option("The page to write.", "-o --output", metavar="FILE")],
    *,
    svg: Annotated[
        StrPath | None, Option("Also write heat maps, curves and histograms as SVG files.", metavar="DIR")
    ] = None,
    observer: Observer = SILENT,
) -> None:
    """Write one HTML page from saved JSON reports: a fleet of checkpoints, the steps of a run.

    Exit codes: 0 written, 2 a file is no report. --format json keeps no pictures, json-with-pictures does.
    """
    from ckptcheck.reporters.html.saved_reports import draw_saved_pictures, render_saved_reports
    from ckptcheck.text.file_io import replace_file, require_output_apart

    paths = [Path(file) for file in several(files)]
    require_output_apart(Path(output), *paths)
    replace_file(Path(output), render_saved_reports(paths).encode())
    if svg is not None:
        try:
            Path(svg).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise CkptcheckError(f"cannot write to {svg}: {error.strerror or error}") from error
        for name, drawing in draw_saved_pictures(paths).items():
            replace_file(Path(svg) / name, drawing.encode("utf-8", "backslashreplace"))
    observer.log(f"the page is {output}")
