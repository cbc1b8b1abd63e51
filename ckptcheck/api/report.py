"""Makes a report of evidence, and a page of saved reports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ckptcheck.api.arguments import StrPath, wrap_single
from ckptcheck.errors import CkptcheckError

if TYPE_CHECKING:
    from ckptcheck.linter.pictures import Picture
    from ckptcheck.linter.report import Report
    from ckptcheck.linter.rule import Rule
    from ckptcheck.runners.runner import Runner


def write_page(files: StrPath | Sequence[StrPath], output: StrPath, *, svg: StrPath | None = None) -> None:
    """Write one HTML page from reports that were saved as JSON: a fleet of checkpoints, or the steps of a run.

    Args:
        files: what ``--format json-with-pictures -o FILE`` wrote, or ``--format json``, which keeps no pictures; in the order of
            the page. A file may hold several reports.
        output: the page.
        svg: folder for the heat maps, curves and histograms as SVG files; None: they are not written.

    Raises CkptcheckError for a file that holds no report, and where the page cannot be written.
    """
    files = wrap_single(files)
    from ckptcheck.reporters.html.saved_reports import draw_saved_pictures, render_saved_reports
    from ckptcheck.text.file_io import replace_file, require_output_apart

    paths = [Path(file) for file in files]
    require_output_apart(Path(output), *paths)
    replace_file(Path(output), render_saved_reports(paths).encode())
    if svg is not None:
        try:
            Path(svg).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise CkptcheckError(f"cannot write to {svg}: {error.strerror or error}") from error
        for name, drawing in draw_saved_pictures(paths).items():
            replace_file(Path(svg) / name, drawing.encode("utf-8", "backslashreplace"))


def add_notes(report: Report, runner: Runner | None) -> Report:
    """Add what happened to the cluster that did the work."""
    from ckptcheck.linter.report import add_cluster_notes

    return add_cluster_notes(report, getattr(runner, "notes", ()))


def build_report(
    evidence: Any,
    loaded: Sequence[Rule] | None = None,
    *,
    selected: Sequence[Rule] | None = None,
    ignored: Mapping[str, str] | None = None,
    pictures: bool = False,
) -> Report:
    """Run rules over evidence, and draw it where pictures are asked for.

    loaded: all rules; None: the built-in ones. selected: those that run; None: all loaded ones.
    """
    from ckptcheck.linter.rule_loader import load_rules
    from ckptcheck.linter.runner import run_rules

    rules = load_rules() if loaded is None else loaded
    report = run_rules(evidence, rules if selected is None else selected, ignored=ignored)
    drawn: tuple[Picture, ...] = ()
    if pictures:
        from ckptcheck.reporters.evidence_pictures import draw_pictures

        drawn = draw_pictures(evidence)
    return replace(report, rules=tuple(rules), pictures=drawn)
