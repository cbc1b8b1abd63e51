"""``ckptcheck parity judge``: judges the logprobs of engine and trainer in rollouts, of one step or of a run."""

import os
import shlex
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from msgspec import structs

from ckptcheck.errors import CkptcheckError, UsageError
from ckptcheck.text.formatting import join_words
from ckptcheck.text.observer import SILENT, Observer
from ckptcheck.verbs.options import (
    FROM_ONE,
    FROM_ZERO,
    JOB,
    KEPT,
    LIMITS,
    Argument,
    ClipHigh,
    ClipLow,
    Floor,
    FloorLimit,
    FrameworkName,
    FrameworkVersion,
    MeanRatioLimit,
    Option,
    Paths,
    Setting,
    StrPath,
)
from ckptcheck.verbs.parameter import several
from ckptcheck.verbs.verb import verb

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ckptcheck.jobs.job import Job
    from ckptcheck.linter.report import Report, Reports

ASKED = {
    "--checkpoint": (
        "has nothing to check here: no experts, no conversation, no end tokens",
        ("PAR069", "PAR073", "PAR074", "PAR076"),
    ),
    "--history": ("knows no weight version that a file names", ("PAR078",)),
    "--replay": ("needs the experts of both sides, and no file has them", ("PAR031",)),
}
"""Option → what is said where it met nothing, and the rules that it asks for."""


@verb()
def judge(
    files: Annotated[
        Paths,
        Argument("Rollouts that both sides scored; several, or a folder: one run.", metavar="FILE..."),
    ],
    *,
    against: Annotated[
        Paths,
        Option(
            "Rollouts of a reference run, at the same steps: a folder, or a file each time. Or its log, where FILE is a log.",
            metavar="REFERENCE",
        ),
    ] = (),
    checkpoint: Annotated[
        StrPath | None,
        Option("The checkpoint that drew the tokens: checks experts, stop tokens, the conversation.", metavar="DIR"),
    ] = None,
    history: Annotated[
        StrPath | None,
        Option("The job's record of syncs: is each weight version what it says it is?", metavar="RECORD", panel=JOB),
    ] = None,
    job: Annotated[
        Paths,
        Option(
            "The job's configuration, a file each time, or key=value: what it says is compared with the rollouts.",
            metavar="JOB",
        ),
    ] = (),
    replay: Annotated[
        bool,
        Option(
            "The trainer replays the engine's experts: a token that went to others is an error.",
            shown="as --job says",
            panel=JOB,
        ),
    ] = False,
    framework: FrameworkName = None,
    exact: Annotated[
        bool, Option("The job is truly on policy: any difference between the two sides is an error.")
    ] = False,
    floor: Floor = None,
    max_floor_multiple: FloorLimit = 5.0,
    max_mult_prob_error: MeanRatioLimit = 1.05,
    max_kl: Annotated[float, Setting("Limit of KL, nats a token.", within=FROM_ZERO)] = 0.01,
    max_prob_diff: Annotated[float, Setting("Limit of the mean difference of probabilities.", within=FROM_ZERO)] = 0.01,
    max_abs: Annotated[
        float | None,
        Setting("Limit of mean |Δ| in nats; slime's CI has 0.1.", within=FROM_ZERO, shown="none"),
    ] = None,
    max_sequence_error: Annotated[float, Setting("Limit of mean exp|Δ| of any one sequence.", within=FROM_ONE)] = 2.0,
    max_lag: Annotated[
        int | None,
        Setting(
            "Versions that tokens may be older than the trainer's weights.",
            within=FROM_ZERO,
            shown="as --job says, at least 1",
        ),
    ] = None,
    clip_low: ClipLow = None,
    clip_high: ClipHigh = None,
    no_limits: Annotated[
        bool,
        Option(
            "Judge by --floor, not by fixed limits; what is wrong at any size stays an error.",
            panel=LIMITS,
            without=("max_mult_prob_error", "max_kl", "max_prob_diff", "max_abs", "max_sequence_error"),
        ),
    ] = False,
    tokenizer: Annotated[
        StrPath | None,
        Option(
            "A checkpoint whose tokenizer.json decodes the worst tokens.",
            metavar="DIR",
            shown="that of --checkpoint",
            panel=KEPT,
        ),
    ] = None,
    framework_version: FrameworkVersion = "",
    pictures: bool = False,
    observer: Observer = SILENT,
) -> "Reports":
    """Judge saved rollouts: how far the trainer's logprobs are from the engine's, and what is wrong with them.

    No engine, trainer or GPU is needed, and the same files give the same report, byte for byte.

    Exit codes: 0 within the limits, 1 findings, 2 could not check.

    Returns a report for each file; where there are several, one for the series after them; and one for the comparison of two runs.
    """
    from ckptcheck import rollouts
    from ckptcheck.jobs.printed_log import compare_logs
    from ckptcheck.linter.report import Reports
    from ckptcheck.linter.rule_loader import load_rules
    from ckptcheck.linter.runner import NOTHING_LOOKED, note_unanswered
    from ckptcheck.rollouts.files import list_rollout_files
    from ckptcheck.rollouts.job_settings import complete_from_job, find_allowed_lag
    from ckptcheck.rollouts.labelled_weights import read_labelled_weights
    from ckptcheck.rollouts.metrics.noise_floor import read_noise_floor
    from ckptcheck.rollouts.rollout_evidence import RolloutEvidence
    from ckptcheck.rollouts.run_comparison import RunComparison
    from ckptcheck.rollouts.series import RolloutSeries
    from ckptcheck.rollouts.series_member import SeriesMember
    from ckptcheck.rollouts.thresholds import Thresholds
    from ckptcheck.verbs.reports import build_report
    from ckptcheck.verbs.rollout_files import load_decoder

    named = [Path(file) for file in several(files)]
    if not named:
        raise CkptcheckError("there is nothing to judge", hint="name a file of rollouts")
    if (logs := compare_logs(named, [Path(file) for file in several(against)])) is not None:
        of_tokens = {
            "--checkpoint": checkpoint, "--history": history, "--job": job, "--replay": replay, "--exact": exact,
            "--floor": floor, "--tokenizer": tokenizer,
        }  # fmt: skip
        if unused := [flag for flag, value in of_tokens.items() if value]:
            has = "has" if len(unused) == 1 else "have"
            raise UsageError(f"{join_words(unused)} {has} no effect on logs: they have no tokens")
        return Reports((build_report(logs, pictures=pictures),))
    opened = _open_job(several(job), framework, framework_version)
    if max_lag is None:
        max_lag = find_allowed_lag(opened)
    clip = clip_low, clip_high
    thresholds = Thresholds(
        max_mult_prob_error,
        max_kl,
        max_prob_diff,
        max_abs,
        max_sequence_error,
        max_floor_multiple,
        max_lag,
        *clip,
        exact,
    )
    if no_limits:
        thresholds = Thresholds(inf, inf, inf, None, inf, max_floor_multiple, max_lag, *clip, exact)
    noise_floor = read_noise_floor(Path(floor)) if floor is not None else None
    drawn_by = None
    if checkpoint is not None:
        from ckptcheck.checkpoint.open import open_checkpoint
        from ckptcheck.rollouts.sampling_checkpoint import SamplingCheckpoint

        drawn_by = SamplingCheckpoint(open_checkpoint(os.fspath(checkpoint)))
        if tokenizer is None and (Path(checkpoint) / "tokenizer.json").is_file():
            tokenizer = checkpoint
    weights = read_labelled_weights(Path(history)) if history is not None else ()
    decode_text = load_decoder(Path(tokenizer)) if tokenizer is not None else None
    decode = None if decode_text is None else lambda token: repr(decode_text([token])) if token >= 0 else "–"
    loaded = load_rules()
    reports: list[Report] = []
    members: list[SeriesMember] = []
    paths = list_rollout_files(named)
    for path in paths:
        evidence = RolloutEvidence(
            str(path), complete_from_job(rollouts.read_rollouts(path), opened), thresholds, noise_floor, decode,
            decode_text=decode_text, drawn_by=drawn_by, weights=weights, job=opened, is_replay=replay,
            is_alone=len(paths) == 1,
        )  # fmt: skip
        report = build_report(evidence, loaded, pictures=pictures)
        if any(finding.code == "PAR020" for finding in report.findings):  # the gap, whose cause is not known yet
            report = structs.replace(
                report, next_step=f"ckptcheck parity why {shlex.quote(str(path))} looks for the cause"
            )
        reports.append(report)
        # of a file alone nothing is compared with another
        if len(paths) > 1 or against:
            members.append(SeriesMember.of(evidence))
    series = RolloutSeries.of(members, thresholds)
    if len(paths) > 1:
        steps = [member.step for member in members]
        labels = [f"step {step}" for step in steps] if None not in steps else [str(path) for path in paths]
        # two files of one step are called by their names
        labels = labels if len(set(labels)) == len(paths) else [str(path) for path in paths]
        summary = build_report(series, loaded, pictures=pictures)
        # each file has a verdict of its own: rules between files that had nothing to compare take none away
        error = None if summary.skipped and summary.error == NOTHING_LOOKED else summary.error
        reports.append(structs.replace(summary, parts=tuple(labels), error=error))
    if against:
        reference = [
            SeriesMember.of(RolloutEvidence(str(path), rollouts.read_rollouts(path), thresholds))
            for path in list_rollout_files([Path(file) for file in several(against)])
        ]
        reports.append(
            build_report(RunComparison(series, RolloutSeries.of(reference, thresholds)), loaded, pictures=pictures)
        )
    given = {"--checkpoint": checkpoint is not None, "--history": history is not None, "--replay": replay}
    asked = {f"{option} {why}": codes for option, (why, codes) in ASKED.items() if given[option]}
    return Reports(tuple(note_unanswered(reports, asked)))


def _open_job(named: "Sequence[StrPath]", framework: str | None, version: str) -> "Job | None":
    """Read the job that rollouts are of, without a look at its checkpoints or at this machine. version: of the framework."""
    if not named:
        return None
    from ckptcheck.jobs.open_job import open_job

    return open_job([os.fspath(part) for part in named], framework=framework, framework_version=version, scan=False)
