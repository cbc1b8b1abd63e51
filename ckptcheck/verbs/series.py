"""``ckptcheck series``: compares the saves of one run with each other."""

import os
from typing import TYPE_CHECKING, Annotated

from ckptcheck.errors import CkptcheckError
from ckptcheck.text.observer import SILENT, Observer
from ckptcheck.verbs.options import Argument, FollowLinks, Jobs, Like, Option, Paths, StrPath
from ckptcheck.verbs.parameter import several, to_path
from ckptcheck.verbs.verb import verb

if TYPE_CHECKING:
    from ckptcheck.linter.report import Report


@verb()
def series(
    runs: Annotated[
        Paths,
        Argument(
            "The folder above iter_0000100, checkpoint-100 or global_step_100, or some of those; also s3://bucket/run (gs://, az://).",
            metavar="RUN...",
        ),
    ],
    *,
    like: Like = None,
    history: Annotated[
        StrPath | None,
        Option("The record that ckptcheck.watch kept: a save equals what the live trainer held.", metavar="FILE"),
    ] = None,
    resumed: Annotated[
        StrPath | None,
        Option("What was saved right after the run was loaded elsewhere, on another grid: it is equal.", metavar="RUN"),
    ] = None,
    cache: Annotated[
        StrPath | None,
        Option(
            "Keep what was read in this file, and read only saves that are new or were replaced.",
            metavar="FILE",
            is_output=True,
        ),
    ] = None,
    follow_links: FollowLinks = False,
    jobs: Jobs = None,
    pictures: bool = False,
    observer: Observer = SILENT,
) -> "Report":
    """Say whether the saves of one run follow each other: what moved, what repeats, whether counters agree and the last is whole.

    Exit codes: 0 clean, 1 findings at or above --fail-on, 2 nothing could be compared.
    """
    from ckptcheck.runs.saves.open_series import open_series
    from ckptcheck.verbs.reports import build_report

    names = [os.fspath(run) for run in several(runs)]
    if not names:
        raise CkptcheckError("there is nothing to compare", hint="name the folder of a run")
    opened = open_series(
        names,
        like=os.fspath(like) if like is not None else None,
        resumed=os.fspath(resumed) if resumed is not None else None,
        history=to_path(history),
        cache=to_path(cache),
        follow_links=follow_links,
        jobs=jobs,
        observer=observer,
    )
    asked = {}
    if history is not None:
        asked["--history: the run has no save that could be compared with it"] = ("SER013",)
    if resumed is not None:
        asked["--resumed: the run has no save that could be compared with it"] = ("SER014",)
    return build_report(opened, asked=asked, pictures=pictures)
