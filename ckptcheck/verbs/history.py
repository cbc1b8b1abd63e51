"""``ckptcheck refit history``: checks a record of weight syncs."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from ckptcheck.errors import CkptcheckError
from ckptcheck.text.observer import SILENT, Observer
from ckptcheck.verbs.options import Argument, Like, Option, Paths, StrPath
from ckptcheck.verbs.parameter import Given
from ckptcheck.verbs.verb import verb

if TYPE_CHECKING:
    from ckptcheck.linter.report import Report


def reject_unused(given: Given) -> None:
    """Reject the names of a checkpoint's tensors if no checkpoint is compared."""
    if given["saved"] is None:
        given.reject(["like"], "without --saved", "name the checkpoint that the job saved")


@verb(reject_unused)
def history(
    file: Annotated[
        StrPath,
        Argument(
            "The record that refit --record or ckptcheck.watch wrote; or a log of slime, TRL, verl, NeMo-RL or PipelineRL.",
            metavar="FILE",
        ),
    ],
    others: Annotated[
        Paths,
        Argument(
            "Records of the same job by others: engines that watched themselves, ranks that send too, a driver that logs.",
            metavar="[FILE...]",
        ),
    ] = (),
    *,
    saved: Annotated[
        StrPath | None,
        Option(
            "A checkpoint that the job saved: are its weights among those that were sent? (needs Watch(identity=…))",
            metavar="CHECKPOINT",
        ),
    ] = None,
    like: Like = None,
    rollouts: Annotated[
        StrPath | None,
        Option("Rollouts of the job: did a sync give the engine each weight version that they carry?", metavar="FILE"),
    ] = None,
    pictures: bool = False,
    observer: Observer = SILENT,
) -> "Report":
    """Say which tensors changed at each weight sync, what was never updated, and whether the version moved.

    Exit codes: 0 every sync did what it should, 1 findings, 2 the file cannot be read. With --watch, Ctrl-C ends the command with
    the code of the last report.
    """
    from ckptcheck.jobs.printed_log import RULES, open_printed_log
    from ckptcheck.linter.rule_loader import load_rules
    from ckptcheck.runs.history.history import ResponseVersions, SavedWeights, open_joined_history
    from ckptcheck.verbs.reports import build_report

    held = responses = None
    if saved is not None:
        from ckptcheck.verbs.identity import identity

        named = identity(saved, like=like, observer=observer)
        if named.names != "Hugging Face":
            raise CkptcheckError(
                f"{named.target} has Megatron's names, and the record those of Hugging Face",
                hint="name a Hugging Face checkpoint of the same model with --like",
            )
        held = SavedWeights(named.target, named.identity)
    if rollouts is not None:
        from ckptcheck.rollouts.files import read_rollouts
        from ckptcheck.rollouts.labelled_weights import count_versions

        responses = ResponseVersions(os.fspath(rollouts), count_versions(read_rollouts(Path(rollouts))))
    paths = [Path(each) for each in (file, *([others] if isinstance(others, str | os.PathLike) else others))]
    try:
        record = open_joined_history(paths, saved=held, responses=responses)
    except CkptcheckError:
        log = None if others or held or responses else open_printed_log(paths[0])
        if log is None:
            raise
        return build_report(log, selected=[rule for rule in load_rules() if rule.name in RULES], pictures=pictures)
    asked = {}
    if held is not None:
        asked["--saved: the record has no sync"] = ("HIS019",)
    if responses is not None:
        asked["--rollouts: the record has no sync"] = ("HIS020",)
    return build_report(record, asked=asked, pictures=pictures)


def follow_history(file: StrPath, *, pictures: bool = False) -> "Iterator[Report]":
    """Yield a report as `history` does, now and whenever a sync was added (``ckptcheck refit history --watch``).

    It never ends by itself. A record that does not exist yet is waited for.

    file: the record of a job that runs.
    """
    from ckptcheck.linter.rule_loader import load_rules
    from ckptcheck.runs.history.follow import follow_history as follow
    from ckptcheck.verbs.reports import build_report

    loaded = load_rules()
    for record in follow(Path(file)):
        yield build_report(record, loaded, pictures=pictures)
