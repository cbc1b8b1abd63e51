"""Judges the logprobs of engine and trainer in rollouts, of one step or of a run."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING

from ckptcheck.api.arguments import StrPath, require_ranges, wrap_single
from ckptcheck.api.report import build_report
from ckptcheck.errors import CkptcheckError
from ckptcheck.text.observer import SILENT, Observer

if TYPE_CHECKING:
    from ckptcheck.linter.report import Report, Reports
    from ckptcheck.rollouts import Rollouts


def judge(
    file: StrPath,
    *,
    floor: StrPath | None = None,
    max_mult_prob_error: float = 1.05,
    max_kl: float = 0.01,
    max_prob_diff: float = 0.01,
    max_abs: float | None = None,
    max_sequence_error: float = 2.0,
    max_floor_multiple: float = 5.0,
    max_lag: int = 1,
    clip_low: float | None = None,
    clip_high: float | None = None,
    no_limits: bool = False,
    exact: bool = False,
    checkpoint: StrPath | None = None,
    history: StrPath | None = None,
    tokenizer: StrPath | None = None,
    pictures: bool = False,
    observer: Observer = SILENT,
) -> Report:
    """Judge rollouts that an engine and a trainer scored. No engine, no trainer and no GPU is needed.

    Args:
        file: rollouts with the logprobs of both sides.
        floor: the noise floor of this model: a file of `calibrate_floor`, or rollouts with equal weights.
        max_mult_prob_error: limit of mean exp|Δ|.
        max_kl: limit of KL, nats a token.
        max_prob_diff: limit of the mean difference of probabilities.
        max_abs: limit of mean |Δ| in nats; slime's CI has 0.1; None: none.
        max_sequence_error: limit of mean exp|Δ| of any one sequence.
        max_floor_multiple: how many times the floor is too much.
        max_lag: versions that tokens may be older than the trainer.
        clip_low: the objective clips the policy ratio below 1 - clip_low; None: as the file records, else 0.2.
        clip_high: the objective clips the policy ratio above 1 + clip_high; None: as the file records, else 0.2.
        no_limits: judge only by the floor, and what is wrong in itself.
        exact: any difference between the two sides is an error, as for runs that are truly on policy.
        checkpoint: the checkpoint that drew the tokens: its experts, stop tokens and chat template are checked against them.
        history: the record of syncs that `ckptcheck.watch` kept in the job: its digests are checked against weight versions.
        tokenizer: a checkpoint whose tokenizer.json decodes the worst tokens; None: `checkpoint`, where it has one.
        pictures: draw what was found, for a notebook.
        observer: receives messages.

    """
    return judge_all(
        [file], floor=floor, max_mult_prob_error=max_mult_prob_error, max_kl=max_kl, max_prob_diff=max_prob_diff,
        max_abs=max_abs, max_sequence_error=max_sequence_error, max_floor_multiple=max_floor_multiple, max_lag=max_lag,
        clip_low=clip_low, clip_high=clip_high, no_limits=no_limits, exact=exact, checkpoint=checkpoint,
        history=history, tokenizer=tokenizer, pictures=pictures, observer=observer,
    )[0]  # fmt: skip


def judge_all(
    files: StrPath | Sequence[StrPath],
    *,
    against: StrPath | Sequence[StrPath] = (),
    floor: StrPath | None = None,
    max_mult_prob_error: float = 1.05,
    max_kl: float = 0.01,
    max_prob_diff: float = 0.01,
    max_abs: float | None = None,
    max_sequence_error: float = 2.0,
    max_floor_multiple: float = 5.0,
    max_lag: int = 1,
    clip_low: float | None = None,
    clip_high: float | None = None,
    no_limits: bool = False,
    exact: bool = False,
    checkpoint: StrPath | None = None,
    history: StrPath | None = None,
    tokenizer: StrPath | None = None,
    pictures: bool = False,
    observer: Observer = SILENT,
) -> Reports:
    """Judge the steps of one run. After a report for each file comes one for the series, and one for the comparison of two runs.

    Args:
        files: the rollouts of a run, one file a step, or a folder of them.
        against: the rollouts of a reference run at the same steps, or a folder of them; (): none.
        floor: see `judge`, as for all arguments that follow.
        max_mult_prob_error: see `judge`.
        max_kl: see `judge`.
        max_prob_diff: see `judge`.
        max_abs: see `judge`.
        max_sequence_error: see `judge`.
        max_floor_multiple: see `judge`.
        max_lag: see `judge`.
        clip_low: see `judge`.
        clip_high: see `judge`.
        no_limits: see `judge`.
        exact: see `judge`.
        checkpoint: see `judge`.
        history: see `judge`.
        tokenizer: see `judge`.
        pictures: draw what was found, for a notebook.
        observer: see `judge`.

    """
    files, against = wrap_single(files), wrap_single(against)
    require_ranges(
        max_mult_prob_error=max_mult_prob_error, max_kl=max_kl, max_prob_diff=max_prob_diff, max_abs=max_abs,
        max_sequence_error=max_sequence_error, max_floor_multiple=max_floor_multiple, max_lag=max_lag, clip_low=clip_low,
        clip_high=clip_high,
    )  # fmt: skip
    from ckptcheck import rollouts
    from ckptcheck.linter.report import Reports
    from ckptcheck.linter.rule_loader import load_rules
    from ckptcheck.rollouts.files import list_rollout_files
    from ckptcheck.rollouts.labelled_weights import read_labelled_weights
    from ckptcheck.rollouts.metrics.noise_floor import read_noise_floor
    from ckptcheck.rollouts.rollout_evidence import RolloutEvidence
    from ckptcheck.rollouts.run_comparison import RunComparison
    from ckptcheck.rollouts.series import RolloutSeries
    from ckptcheck.rollouts.series_member import SeriesMember
    from ckptcheck.rollouts.thresholds import Thresholds
    from ckptcheck.unused_options import Arguments, reject_unused_judge_options

    given = Arguments(judge_all, locals())
    reject_unused_judge_options(given, no_limits=no_limits, has_floor=floor is not None)
    if not files:
        raise CkptcheckError("there is nothing to judge", hint="name a file of rollouts")
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
    paths = list_rollout_files([Path(file) for file in files])
    for path in paths:
        evidence = RolloutEvidence(
            str(path), rollouts.read_rollouts(path), thresholds, noise_floor, decode, decode_text=decode_text,
            drawn_by=drawn_by, weights=weights,
        )  # fmt: skip
        reports.append(build_report(evidence, loaded, pictures=pictures))
        members.append(SeriesMember.of(evidence))
    series = RolloutSeries.of(members, thresholds)
    if len(paths) > 1:
        reports.append(build_report(series, loaded, pictures=pictures))
    if against:
        reference = [
            SeriesMember.of(RolloutEvidence(str(path), rollouts.read_rollouts(path), thresholds))
            for path in list_rollout_files([Path(file) for file in against])
        ]
        comparison = RunComparison(series, RolloutSeries.of(reference, thresholds))
        reports.append(build_report(comparison, loaded, pictures=pictures))
    return Reports(tuple(reports))


def load_decoder(folder: Path) -> Callable[[Sequence[int]], str]:
    """Return a function from token ids to their text. Raises CkptcheckError where no tokenizer.json can be read."""
    from ckptcheck.checkpoint.open_tokenizer import FILE, open_tokenizer, read_tokenizer_file

    tokenizer = open_tokenizer(read_tokenizer_file(folder), str(folder / FILE if folder.is_dir() else folder))
    return lambda tokens: str(tokenizer.decode(list(tokens), skip_special_tokens=False))


def read_rollout_files(paths: list[Path], source: str | None) -> tuple[Rollouts, str]:
    """Read the rollouts of a framework, or our own; return them and what wrote them."""
    from ckptcheck.rollouts import read_rollouts
    from ckptcheck.rollouts.convert import convert
    from ckptcheck.rollouts.lines import is_rollout_lines

    is_own = source is None and (paths[0].suffix == ".safetensors" or is_rollout_lines(paths[0]))
    if not is_own and source != "ckptcheck":
        return convert(paths, source)
    rollouts = read_rollouts(paths[0])
    if rollouts.defects or len(paths) > 1:
        what = (
            f"is malformed: {rollouts.defects[0].text}" if rollouts.defects else "is one of several; give one at a time"
        )
        raise CkptcheckError(f"{paths[0]} {what}")
    return rollouts, "ckptcheck"
