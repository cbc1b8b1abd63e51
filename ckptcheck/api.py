"""The Python API: one function a verb, from evidence over rules to a report.

The command line calls these functions, so a program, a notebook and a terminal get the same `Report` for the same input::

    import ckptcheck

    report = ckptcheck.scan("./my-model")
    report.raise_for_findings()

Keyword arguments have the names and the defaults of the command's options. Where an argument takes several values, a single string,
path or number stands for a list of one. A function raises `CkptcheckError` where the command exits with 2 and has nothing else to
report: an unreadable target, a number out of its range, an option that cannot be met. A report whose verdict is ``incomplete`` is
returned; `Report.raise_for_findings` raises for it. An observer receives messages and progress; without one nothing is printed.

Everything is imported inside the functions: importing this module costs nothing, and ``scan`` never loads torch.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import inf, isfinite
from numbers import Integral, Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast, get_args, overload

from ckptcheck.errors import CkptcheckError, UsageError
from ckptcheck.text.observer import SILENT, Observer

if TYPE_CHECKING:
    from ckptcheck.checkpoint.scan_options import ScanOptions
    from ckptcheck.compare.identity import Identity
    from ckptcheck.compare.manifest import Manifest
    from ckptcheck.compare.matching.comparison import Comparison
    from ckptcheck.linter.report import FailOn, Report, Reports
    from ckptcheck.linter.rule import Rule
    from ckptcheck.parity.calibrate import FloorMeasurement
    from ckptcheck.parity.rollouts import Rollouts
    from ckptcheck.preflight.job import Job
    from ckptcheck.refit.conformance.own_transport import WeightTransport
    from ckptcheck.runners.runner import Runner
    from ckptcheck.runtime.process.exchange import TensorExchange
    from ckptcheck.runtime.trainers.base import Trainer
    from ckptcheck.scanning import ScanRequest
    from ckptcheck.text.observer import Advance

StrPath = str | os.PathLike[str]
Dtype = Literal["float32", "bfloat16"]
TrainerName = Literal["megatron", "transformers"]
EngineMode = Literal["plain", "stock"]
AdapterUpdate = Literal["reload", "inplace", "same"]
Bridge = Literal["builtin", "mbridge", "both"]
Device = Literal["auto", "cpu", "cuda"]
PartVerb = Literal["scan", "manifest", "verify", "diff"]
Scheme = Literal["w4a16", "w8a8", "fp8", "nvfp4", "mxfp4", "mxfp8"]
Quantizer = Literal["compressed-tensors", "slime"]
RolloutFormat = Literal[
    "slime", "slime-train", "verl", "roll", "nemo-rl", "pipelinerl", "prime-rl", "sglang", "vllm", "ckptcheck"
]
LogprobKind = Literal["raw", "processed", "unknown"]
TokenSampler = Literal["engine", "trainer"]

SPARE_TOKENS = 2
"""Tokens of context beyond the longest sequence, which SGLang keeps to itself (see PRB001)."""
COHERENCE_RULES = ("PAR003", "PAR004", "PAR009", "PAR027", "PAR050", "PAR051", "PAR076", "PAR077")
"""The rules that judge an engine's responses alone."""
COMPILING_PROBES = ("graphs", "inductor", "casts")
"""Probes that compile: minutes each, so only on demand."""


class NumberRange(NamedTuple):
    """The numbers that an argument takes, as the option of its name does."""

    least: float
    most: float = inf
    is_whole: bool = False


FROM_ONE = NumberRange(1, is_whole=True)
FROM_ZERO = NumberRange(0, is_whole=True)
NOT_NEGATIVE = NumberRange(0)
"""Thresholds and limits: a comparison with NaN or infinity would always pass."""
RANGES = {
    **dict.fromkeys(
        (
            "jobs",
            "tp",
            "pp",
            "ep",
            "engine_tp",
            "engine_ep",
            "engine_pp",
            "engine_dp",
            "number",
            "response",
            "batch",
            "repeats",
            "sequences",
        ),
        FROM_ONE,
    ),
    **dict.fromkeys(("top_k", "full", "step", "steps", "trainer_version", "max_lag"), FROM_ZERO),
    **dict.fromkeys(("near_zero_threshold", "identical_threshold", "rtol", "atol", "perturb", "limit"), NOT_NEGATIVE),
    **dict.fromkeys(("max_kl", "max_prob_diff", "max_abs", "temperature", "trainer_temperature"), NOT_NEGATIVE),
    **dict.fromkeys(("clip_low", "clip_high"), NOT_NEGATIVE),
    **dict.fromkeys(("max_mult_prob_error", "max_sequence_error", "max_floor_multiple", "timeout"), NumberRange(1)),
    "length": NumberRange(4, is_whole=True),
    "seed": NumberRange(-inf, is_whole=True),
    "sleep_level": NumberRange(1, 2, is_whole=True),
    "bucket_mb": NumberRange(0.001),
    "top_p": NumberRange(0, 1),
    **dict.fromkeys(("presence_penalty", "frequency_penalty"), NumberRange(-2, 2)),
    "repetition_penalty": NumberRange(0.01),
}
"""Argument → the numbers that it takes, in every function that has no range of its own for it."""


# --- saved reports ---


def write_page(files: StrPath | Sequence[StrPath], output: StrPath) -> None:
    """Write one HTML page from reports that were saved as JSON: a fleet of checkpoints, or the steps of a run.

    Args:
        files: what ``--format json-with-pictures -o FILE`` wrote, or ``--format json``, which keeps no pictures; in the order of
            the page. A file may hold several reports.
        output: the page.

    Raises CkptcheckError for a file that holds no report, and where the page cannot be written.
    """
    files = _wrap_single(files)
    from ckptcheck.linter.reporters.html.saved_reports import render_saved_reports
    from ckptcheck.text.file_io import replace_file, require_output_apart

    paths = [Path(file) for file in files]
    require_output_apart(Path(output), *paths)
    replace_file(Path(output), render_saved_reports(paths).encode())


# --- checkpoints ---


def scan(
    target: StrPath,
    *,
    recursive: bool = False,
    follow_links: bool = False,
    headers_only: bool = False,
    values: bool = False,
    verify_blobs: bool = False,
    near_zero_threshold: float = 1e-10,
    identical_threshold: float = 1e-8,
    base: StrPath | None = None,
    stats: StrPath | None = None,
    consumers: Sequence[str] = (),
    no_mmap: bool = False,
    device: str = "cpu",
    select: Sequence[str] = (),
    ignore: Sequence[str] = (),
    rules: StrPath | Sequence[StrPath] = (),
    jobs: int | None = None,
    runner: Runner | None = None,
    fix: bool = False,
    baseline: StrPath | None = None,
    write_baseline: StrPath | None = None,
    config: StrPath | None = None,
    observer: Observer = SILENT,
) -> Report:
    """Check a checkpoint: missing, broken or unintended weights, indexes, configs and tokenizers.

    Args:
        target: a folder (Hugging Face or Megatron), a .safetensors file, an index, ``hf://org/name@revision`` or the address of its
            page on the Hub, ``s3://bucket/folder`` (also ``gs://``, ``az://``, ``msc://``).
        recursive: look for the checkpoint in the folders below, too; `scan_all` scans several.
        follow_links: follow links out of the checkpoint, to regular files.
        headers_only: read headers and configs only, no tensor values.
        values: read the values of a target on the Hub or in an object store too.
        verify_blobs: hash the files of a cached snapshot and compare with the names of their blobs.
        near_zero_threshold: rows of embeddings below this magnitude count as near zero.
        identical_threshold: rows whose standard deviation is below this count as constant.
        base: the base model of an adapter; None: a folder beside the adapter, where its config names one.
        stats: file for a JSON record of every tensor.
        consumers: names of consumers (vllm, sglang, …) whose reading of a quantized checkpoint the report tabulates.
        no_mmap: read files instead of mapping them (network file systems).
        device: where values are scanned, as torch names it.
        select: run only these rules: codes, prefixes of codes, or names.
        ignore: rules that do not run; the report lists them as skipped.
        rules: folders with further rules. Their code runs.
        jobs: files read at a time; None: as many as there are cores.
        fix: make the safe repairs first, then report what remains.
        baseline: file of known findings, which the report leaves out.
        write_baseline: write the findings to this file as known; the report leaves them out.
        config: file with settings; None: the nearest ckptcheck.toml or pyproject.toml above the working directory.
        runner: what runs the passes over all bytes: `Local()`, `Parts(folder)`, `Ray(address)`; None: this machine.
        observer: receives messages and progress.

    Raises CkptcheckError for a target that cannot be read, for arguments that contradict each other, and where `recursive` finds
    several checkpoints.

    """
    if recursive:
        from ckptcheck.checkpoint.targets import resolve_targets

        found = resolve_targets([os.fspath(target)], recursive=True, follow_links=follow_links, log=observer.log)
        if len(found) > 1:
            raise CkptcheckError(
                f"{target} holds {len(found)} checkpoints, and scan reports on one", "scan_all takes several"
            )
    return scan_all(
        [target], recursive=recursive, follow_links=follow_links, headers_only=headers_only, values=values,
        verify_blobs=verify_blobs, near_zero_threshold=near_zero_threshold, identical_threshold=identical_threshold, base=base,
        stats=stats, consumers=consumers, no_mmap=no_mmap, device=device, select=select, ignore=ignore, rules=rules, jobs=jobs,
        runner=runner, fix=fix, baseline=baseline, write_baseline=write_baseline, config=config, observer=observer,
    )[0]  # fmt: skip


def scan_all(
    targets: StrPath | Sequence[StrPath],
    *,
    recursive: bool = False,
    follow_links: bool = False,
    headers_only: bool = False,
    values: bool = False,
    verify_blobs: bool = False,
    near_zero_threshold: float = 1e-10,
    identical_threshold: float = 1e-8,
    base: StrPath | None = None,
    stats: StrPath | None = None,
    consumers: Sequence[str] = (),
    no_mmap: bool = False,
    device: str = "cpu",
    select: Sequence[str] = (),
    ignore: Sequence[str] = (),
    rules: StrPath | Sequence[StrPath] = (),
    jobs: int | None = None,
    runner: Runner | None = None,
    fix: bool = False,
    baseline: StrPath | None = None,
    write_baseline: StrPath | None = None,
    config: StrPath | None = None,
    observer: Observer = SILENT,
) -> Reports:
    """Check several checkpoints; see `scan` for the arguments. A target that cannot be read gets a report with an error.

    Several files of one model are one target: the folder that holds them. With `recursive`, every checkpoint in a folder and
    below it is one.

    Raises CkptcheckError as `scan`, for an unreadable target only where it is the only one.
    """
    from ckptcheck.linter import baseline as baselines
    from ckptcheck.linter.report import Reports
    from ckptcheck.scanning import scan_targets

    names, request, loaded_rules, fail_on = _prepare_scan(
        targets=targets,
        recursive=recursive,
        follow_links=follow_links,
        headers_only=headers_only,
        values=values,
        verify_blobs=verify_blobs,
        near_zero_threshold=near_zero_threshold,
        identical_threshold=identical_threshold,
        base=base,
        stats=stats,
        consumers=consumers,
        no_mmap=no_mmap,
        device=device,
        select=select,
        ignore=ignore,
        rules=rules,
        jobs=jobs,
        runner=runner,
        fix=fix,
        baseline=baseline,
        write_baseline=write_baseline,
        config=config,
        observer=observer,
    )
    known = baselines.read_baseline(Path(baseline)) if baseline else frozenset()
    reports = scan_targets(names, request)
    if write_baseline:
        known = baselines.write_baseline(Path(write_baseline), reports)
        observer.log(f"{len(known)} finding{'' if len(known) == 1 else 's'} written to {write_baseline}")
    if known:
        reports = [baselines.drop_known(report, known) for report in reports]
    reports = [_add_notes(report, runner) for report in reports]
    return Reports(tuple(replace(report, rules=tuple(loaded_rules), fail_on=fail_on) for report in reports))


def _prepare_scan(
    *,
    targets: StrPath | Sequence[StrPath],
    recursive: bool,
    follow_links: bool,
    headers_only: bool,
    values: bool,
    verify_blobs: bool,
    near_zero_threshold: float,
    identical_threshold: float,
    base: StrPath | None,
    stats: StrPath | None,
    consumers: Sequence[str],
    no_mmap: bool,
    device: str,
    select: Sequence[str],
    ignore: Sequence[str],
    rules: StrPath | Sequence[StrPath],
    jobs: int | None,
    runner: Runner | None,
    fix: bool,
    baseline: StrPath | None,
    write_baseline: StrPath | None,
    config: StrPath | None,
    observer: Observer,
) -> tuple[list[str], ScanRequest, list[Rule], FailOn]:
    """Return the targets, the request, all loaded rules, and the severity that the settings fail on; see `scan_all`."""
    arguments = dict(locals())
    targets = _wrap_single(targets)
    consumers = _wrap_single(consumers)
    select = _wrap_single(select)
    ignore = _wrap_single(ignore)
    rules = _wrap_single(rules)
    _require_ranges(near_zero_threshold=near_zero_threshold, identical_threshold=identical_threshold, jobs=jobs)
    from ckptcheck.checkpoint.scan_options import ScanOptions
    from ckptcheck.checkpoint.targets import normalize_target, resolve_targets
    from ckptcheck.text.file_io import require_distinct_outputs
    from ckptcheck.unused_options import Arguments, reject_unused_scan_options

    given = Arguments(scan_all, arguments)
    names = [normalize_target(os.fspath(target)) for target in targets]
    reject_unused_scan_options(
        given, names, headers_only=headers_only, values=values, write_baseline=write_baseline is not None
    )
    if not targets:
        raise CkptcheckError("there is nothing to scan", hint="name a checkpoint")
    if headers_only and stats:
        raise UsageError("--headers-only leaves the values out that --stats would write; choose one")
    if headers_only and values:
        raise UsageError("--headers-only leaves the values out and --values reads them; choose one")
    require_distinct_outputs({"--stats": _path(stats), "--write-baseline": _path(write_baseline)})
    names = resolve_targets(names, recursive=recursive, follow_links=follow_links, log=observer.log)
    options = ScanOptions(
        verify_blobs, near_zero_threshold, identical_threshold, None if base is None else os.fspath(base),
        _check_consumers(consumers), follow_links=follow_links,
    )  # fmt: skip
    request, loaded_rules, fail_on = _scan_request(names, config, rules, select, ignore, options)
    request = replace(
        request, jobs=jobs, fix=fix, headers_only=headers_only, remote_values=values, use_mmap=not no_mmap, device=device,
        stats=_path(stats), runner=_check_runner(runner, device), observer=observer,
    )  # fmt: skip
    return names, request, loaded_rules, fail_on


def preview_repairs(
    targets: StrPath | Sequence[StrPath],
    *,
    recursive: bool = False,
    follow_links: bool = False,
    consumers: Sequence[str] = (),
    rules: StrPath | Sequence[StrPath] = (),
    jobs: int | None = None,
    config: StrPath | None = None,
    observer: Observer = SILENT,
) -> str:
    """Return as unified diffs what ``scan(..., fix=True)`` would change, "" where it would change nothing."""
    targets = _wrap_single(targets)
    consumers = _wrap_single(consumers)
    rules = _wrap_single(rules)
    _require_ranges(jobs=jobs)
    from ckptcheck.checkpoint.scan_options import ScanOptions
    from ckptcheck.checkpoint.targets import resolve_targets
    from ckptcheck.scanning import preview_repairs

    names = [os.fspath(target) for target in targets]
    if not targets:
        raise CkptcheckError("there is nothing to scan", hint="name a checkpoint")
    names = resolve_targets(names, recursive=recursive, follow_links=follow_links, log=observer.log)
    options = ScanOptions(consumers=_check_consumers(consumers), follow_links=follow_links)
    request, _, _ = _scan_request(names, config, rules, (), (), options)
    return preview_repairs(names, replace(request, jobs=jobs, observer=observer))


def _scan_request(
    targets: Sequence[str],
    config: StrPath | None,
    rule_folders: Sequence[StrPath],
    select: Sequence[str],
    ignore: Sequence[str],
    options: ScanOptions,
) -> tuple[ScanRequest, list[Rule], FailOn]:
    """Return the request, all loaded rules, and the severity that the settings fail on."""
    from ckptcheck.linter import rule_loader, settings
    from ckptcheck.linter.selection import match_rules, select_rules
    from ckptcheck.scanning import ScanRequest

    project = settings.load_settings(Path(config)) if config else settings.find_settings(Path.cwd(), targets)
    loaded = rule_loader.load_rules([*project.rule_folders, *map(Path, rule_folders)])
    ignored = project.ignored_codes(loaded)
    for pattern in ignore:
        ignored |= {rule.code: "ignored on the command line" for rule in match_rules(loaded, pattern)}
    request = ScanRequest(
        rules=select_rules(loaded, list(select) or project.select),
        ignored=ignored,
        severities=project.severity_codes(loaded),
        options=options,
    )
    return request, list(loaded), project.fail_on


def _check_consumers(names: Sequence[str]) -> tuple[str, ...]:
    """Return the names without repetitions. Raises CkptcheckError for one that is no consumer."""
    if not names:
        return ()
    from difflib import get_close_matches

    from ckptcheck.consumers.registry import CONSUMERS

    for name in names:
        if name not in CONSUMERS:
            near = get_close_matches(name, CONSUMERS, 1)
            raise CkptcheckError(
                f"{name!r} is no consumer that ckptcheck knows" + (f"; did you mean {near[0]}?" if near else ""),
                hint=f"known are {', '.join(CONSUMERS)}",
            )
    return tuple(dict.fromkeys(names))


def diff(
    first: StrPath,
    second: StrPath,
    *,
    cast: str = "auto",
    rtol: float = 0.0,
    atol: float = 0.0,
    previous: StrPath | None = None,
    base: StrPath | None = None,
    critic: bool = False,
    bridge: Bridge = "builtin",
    follow_links: bool = False,
    jobs: int | None = None,
    runner: Runner | None = None,
    observer: Observer = SILENT,
) -> Report:
    """Compare two checkpoints tensor by tensor, across layouts, and say why they differ.

    Args:
        first: the reference: a folder (Hugging Face or Megatron), a file, an index, or ``hf://org/name@revision``, ``s3://bucket/folder``.
        second: what was made of it.
        cast: the dtype to compare in (bf16, fp16, fp32, fp64), auto for the one that the second declares, or none.
        rtol: relative tolerance, of the first's numbers.
        atol: absolute tolerance.
        previous: the version before `first`, where `second` was to be updated: what `second` still has of it is stale.
        base: the base model of `first`, if that is a LoRA adapter: `second` is compared with the base with the adapter merged
            into it. If `first` is a whole model, the version that both were made from: what `second` still has of it is stale.
        critic: one side is a critic: only the heads may be missing or extra.
        bridge: maps Megatron's tensors by the built-in tables, by mbridge, or compares both mappings.
        follow_links: follow links out of a checkpoint, to regular files.
        jobs: threads that compare; None: as many as there are cores.
        runner: what runs the passes over all bytes: `Local()`, `Parts(folder)`, `Ray(address)`; None: this machine.
        observer: receives messages and progress.

    """
    with observer.progress(f"{os.fspath(first)} ↔ {os.fspath(second)}") as progress:
        comparison = _open_comparison(
            first=first,
            second=second,
            cast=cast,
            rtol=rtol,
            atol=atol,
            previous=previous,
            base=base,
            critic=critic,
            bridge=bridge,
            follow_links=follow_links,
            jobs=jobs,
            runner=runner,
            progress=progress,
        )
        return _add_notes(_report(comparison), runner)


def _open_comparison(
    *,
    first: StrPath,
    second: StrPath,
    cast: str,
    rtol: float,
    atol: float,
    previous: StrPath | None,
    base: StrPath | None,
    critic: bool,
    bridge: Bridge,
    follow_links: bool,
    jobs: int | None,
    runner: Runner | None,
    progress: Advance | None,
) -> Comparison:
    """Open both sides; see `diff` for the arguments."""
    _require_ranges(rtol=rtol, atol=atol, jobs=jobs)
    from ckptcheck.compare.matching.cast import parse_dtype
    from ckptcheck.compare.matching.comparison import Comparison
    from ckptcheck.compare.matching.equality import Tolerance
    from ckptcheck.compare.matching.merged_adapter import is_adapter, open_adapter
    from ckptcheck.compare.matching.side import open_side

    _require_choice("--bridge", bridge, Bridge)
    dtype = cast if cast in ("auto", "none") else parse_dtype(cast)
    if dtype is None:
        raise CkptcheckError(f"{cast!r} is no dtype to compare in", hint="choose auto, none, bf16, fp16, fp32 or fp64")
    if base is not None and previous is not None:
        raise CkptcheckError("--base and --previous both name what came before", "give the one that is meant")
    names = os.fspath(first), os.fspath(second)
    adapter, reference = None, names[0]
    if base is not None and is_adapter(names[0], follow_links=follow_links):
        reference = os.fspath(base)
    elif base is not None:
        previous = base
    sides = (
        open_side(reference, jobs=jobs, follow_links=follow_links),
        open_side(names[1], jobs=jobs, follow_links=follow_links),
    )
    if reference != names[0]:
        adapter = open_adapter(names[0], sides[0], follow_links=follow_links)
    if bridge != "builtin" and sides[0].is_megatron == sides[1].is_megatron:
        raise CkptcheckError(
            f"--bridge {bridge} has no effect between two checkpoints of one form",
            "a bridge maps between Megatron's tensors and Hugging Face's",
        )
    before = open_side(os.fspath(previous), jobs=jobs, follow_links=follow_links) if previous is not None else None
    comparison = Comparison(
        *sides,
        Tolerance(dtype, rtol, atol),
        critic,
        bridge,
        previous=before,
        adapter=adapter,
        jobs=jobs,
        runner=_check_runner(runner),
        progress=progress,
    )
    # raises CkptcheckError where mbridge is asked for and fails
    _ = comparison.mbridge_mapping
    return comparison


def manifest(
    target: StrPath,
    output: StrPath | None = None,
    *,
    follow_links: bool = False,
    jobs: int | None = None,
    runner: Runner | None = None,
    observer: Observer = SILENT,
) -> Manifest:
    """Return dtype, shape and digest (xxh3-128) of every tensor.

    Args:
        target: a folder (Hugging Face or Megatron), a file, an index, ``hf://org/name@revision`` or ``s3://bucket/folder``.
        output: file that the manifest is written to; None: none.
        follow_links: follow links out of the checkpoint, to regular files.
        jobs: tensors read at a time; None: as many as there are cores.
        runner: what runs the passes over all bytes: `Local()`, `Parts(folder)`, `Ray(address)`; None: this machine.
        observer: receives messages and progress.

    """
    _require_ranges(jobs=jobs)
    from ckptcheck.checkpoint.open import open_target
    from ckptcheck.checkpoint.scan_options import ScanOptions
    from ckptcheck.compare.manifest import build_manifest, write_manifest
    from ckptcheck.text.formatting import count

    name = os.fspath(target)
    with observer.progress(name) as progress:
        built = build_manifest(
            open_target(name, jobs=jobs, options=ScanOptions(follow_links=follow_links)),
            jobs=jobs,
            runner=_check_runner(runner),
            progress=progress,
        )
    if output is not None:
        write_manifest(built, Path(output))
        observer.log(f"{count(len(built.tensors), 'tensor')} written to {output}")
    return built


def identity(
    target: StrPath,
    *,
    like: StrPath | None = None,
    follow_links: bool = False,
    jobs: int | None = None,
    observer: Observer = SILENT,
) -> Identity:
    """Return one name for a set of weights, the same for every layout in which they are stored.

    Args:
        target: a folder (Hugging Face or Megatron), a file, an index, ``hf://org/name@revision`` or ``s3://bucket/folder``.
        like: a Hugging Face checkpoint of the same model, whose config says what Megatron's tensors are called there; its weights
            are not read. None: a Megatron run keeps its own names, and has another identity than its export.
        follow_links: follow links out of the checkpoint, to regular files.
        jobs: pieces of tensors read at a time; None: as many as there are cores.
        observer: receives messages and progress.

    Raises EvidenceError where a tensor is missing or cannot be read: part of a set of weights has no identity.
    """
    _require_ranges(jobs=jobs)
    from ckptcheck.checkpoint.open import open_target
    from ckptcheck.checkpoint.scan_options import ScanOptions
    from ckptcheck.compare.identity import identify_checkpoint

    name = os.fspath(target)
    options = ScanOptions(follow_links=follow_links)
    reference = open_target(os.fspath(like), jobs=jobs, options=options) if like is not None else None
    with observer.progress(name) as progress:
        return identify_checkpoint(
            open_target(name, jobs=jobs, options=options), reference, jobs=jobs, progress=progress
        )


def verify(
    target: StrPath,
    manifest: StrPath | Manifest,
    *,
    follow_links: bool = False,
    jobs: int | None = None,
    runner: Runner | None = None,
    observer: Observer = SILENT,
) -> Report:
    """Say which tensors changed, moved or vanished since a manifest was written.

    Args:
        target: the checkpoint as it is now.
        manifest: what `manifest` returned, or the file that it wrote.
        follow_links: follow links out of the checkpoint, to regular files.
        jobs: tensors read at a time; None: as many as there are cores.
        runner: what runs the passes over all bytes: `Local()`, `Parts(folder)`, `Ray(address)`; None: this machine.
        observer: receives messages and progress.

    """
    _require_ranges(jobs=jobs)
    from ckptcheck.checkpoint.open import open_target
    from ckptcheck.checkpoint.scan_options import ScanOptions
    from ckptcheck.compare.manifest import Manifest, read_manifest, verify_manifest

    expected = manifest if isinstance(manifest, Manifest) else read_manifest(os.fspath(manifest))
    name = os.fspath(target)
    with observer.progress(name) as progress:
        verification = verify_manifest(
            open_target(name, jobs=jobs, options=ScanOptions(follow_links=follow_links)),
            expected,
            jobs=jobs,
            runner=_check_runner(runner),
            progress=progress,
        )
    return _add_notes(_report(verification), runner)


# --- several machines ---


def write_part(
    verb: PartVerb,
    *targets: StrPath,
    part: str,
    folder: StrPath,
    jobs: int | None = None,
    observer: Observer = SILENT,
    **options: Any,
) -> Path:
    """Compute one part of what a verb reads and write it to a folder, which machines share; `join` makes the report of all parts.

    Args:
        verb: scan, manifest, verify or diff.
        targets: the arguments of the verb that have no name: checkpoints, and the manifest of verify.
        part: which part of how many: ``0/8`` to ``7/8``.
        folder: where the parts are written. What an earlier run wrote there of the same files is not computed again.
        jobs: threads of this process; None: as many as there are cores, more where bytes come over the network.
        observer: receives messages and progress.
        options: further arguments of the verb, which `join` uses as well.

    Returns the file. Raises EvidenceError where not everything could be read: the part is there, and a rerun reads the rest.
    """
    _require_choice("verb", verb, PartVerb)
    _require_ranges(jobs=jobs)
    import inspect

    from ckptcheck.runners.parts import PartWriter
    from ckptcheck.scanning import run_passes
    from ckptcheck.text.addresses import is_remote_address
    from ckptcheck.text.formatting import format_bytes

    function: Any = {"scan": scan_all, "manifest": manifest, "verify": verify, "diff": diff}[verb]
    names = [os.fspath(target) for target in targets]
    if verb == "scan" and any(map(is_remote_address, names)):
        options["values"] = True
    defaults = inspect.signature(function).parameters
    for name in options.keys() - defaults.keys():
        raise UsageError(f"{verb} takes no {name}")
    given = {
        name: [*map(_plain, value)] if isinstance(value, (list, tuple)) else _plain(value)
        for name, value in options.items()
        if value not in (None, defaults[name].default) and value != []
    }
    if given.get("headers_only") or given.get("fix"):
        raise UsageError(
            "parts are of values: --headers-only and --fix have no effect on one", hint="scan without --part"
        )
    writer = PartWriter(Path(folder), part, verb, {"*": names, **given}, jobs=jobs)
    with observer.progress(f"part {part}") as progress:
        if verb == "scan":
            defaulted = {name: one.default for name, one in defaults.items() if one.kind is one.KEYWORD_ONLY}
            arguments = {**defaulted, **given, "targets": names, "jobs": jobs, "runner": writer, "observer": observer}
            found, request, _, _ = _prepare_scan(**arguments)
            run_passes(found, request)
        elif verb == "diff":
            defaulted = {name: one.default for name, one in defaults.items() if name != "observer"}
            comparison = _open_comparison(
                **{**defaulted, **given, "first": names[0], "second": names[1], "jobs": jobs, "runner": writer},
                progress=progress,
            )
            _ = comparison.value_differences
        else:
            function(*names, **given, jobs=jobs, runner=writer, observer=observer)
    path = writer.write()
    known = f", {format_bytes(writer.known)} known from before" if writer.known else ""
    observer.log(f"part {part} written to {path}: {format_bytes(writer.computed)} read{known}")
    return path


def join(
    folder: StrPath, output: StrPath | None = None, *, jobs: int | None = None, observer: Observer = SILENT
) -> Reports | Manifest:
    """Return what a verb returns, from the parts that `write_part` wrote to a folder.

    Rules run here; they read headers, and single pieces of tensors, from the checkpoint.

    Args:
        folder: the folder of the parts.
        output: file that a manifest is written to; None: none. Reports are written by whoever asks for them.
        jobs: files read at a time; None: as many as there are cores.
        observer: receives messages and progress.

    Raises EvidenceError where a part is missing, doubled, of another plan or version, with the command that runs it again.
    """
    _require_ranges(jobs=jobs)
    from ckptcheck.linter.report import Reports
    from ckptcheck.runners.parts import Parts

    parts = Parts(os.fspath(folder))
    verb, recorded = parts.read_command()
    names, arguments = recorded["*"], {name: value for name, value in recorded.items() if name != "*"}
    if verb == "scan":
        return scan_all(names, **arguments, jobs=jobs, runner=parts, observer=observer)
    if verb == "manifest":
        return manifest(names[0], output, **arguments, jobs=jobs, runner=parts, observer=observer)
    compare: Any = {"verify": verify, "diff": diff}[verb]
    report = compare(*names, **arguments, jobs=jobs, runner=parts, observer=observer)
    return Reports((report,))


def _plain(value: Any) -> Any:
    """Return a value as a part records it."""
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def _check_runner(runner: Runner | None, device: str = "cpu") -> Runner | None:
    """Return the runner, None for the default one. Raises CkptcheckError where it cannot run anything."""
    from ckptcheck.runners.parts import Parts
    from ckptcheck.runners.runner import Local

    if isinstance(runner, Parts):
        runner.read_command()
    elif runner is not None and device != "cpu":
        raise UsageError("--device has no effect where another machine scans the values")
    return None if type(runner) is Local else runner


def _add_notes(report: Report, runner: Runner | None) -> Report:
    """Add what happened to the cluster that did the work."""
    from ckptcheck.linter.report import Section

    notes = tuple(getattr(runner, "notes", ()))
    return replace(report, sections=(*report.sections, Section("Cluster", lines=notes))) if notes else report


# --- jobs ---


def preflight(
    *job: StrPath,
    framework: str | None = None,
    engine_version: str = "",
    te_version: str = "",
    framework_version: str = "",
    scan_checkpoints: bool = True,
    show_settings: bool = False,
    here: bool = False,
    env: Sequence[str] = (),
    select: Sequence[str] = (),
    ignore: Sequence[str] = (),
) -> Report:
    """Read the configuration of an RL job and say what will go wrong. Nothing is executed.

    Args:
        job: the job's .yaml, .toml or .sh files, in order, and ``key=value`` overrides.
        framework: verl, slime, nemo-rl, pipelinerl, roll, prime-rl, vllm or sglang; None: detected by the keys.
        engine_version: version of the engine, for its defaults; "": as the files pin it.
        te_version: version of Transformer Engine.
        framework_version: the framework's release or the date of a commit, for its defaults; "": as the files pin it.
        scan_checkpoints: read the headers of checkpoints that the job names and that are on this disk.
        show_settings: add a section with every setting that was understood, and its place; and report what the job leaves to its
            engine (JOB005) and how old its rollouts may be (JOB007).
        here: the job will start on this machine: also look for its paths, ports, disk space and shared memory.
        env: ``NAME=value`` for variables that the job's script or configuration takes from its environment; ``1=value`` is the
            script's first argument.
        select: run only these rules: codes, prefixes of codes, or names.
        ignore: rules that do not run; the report lists them as skipped.

    """
    select = _wrap_single(select)
    ignore = _wrap_single(ignore)
    return _open_job(
        job, framework, engine_version, te_version, framework_version, scan_checkpoints=scan_checkpoints,
        show_settings=show_settings, here=here, env=_wrap_single(env), select=select, ignore=ignore,
    )[1]  # fmt: skip


def _open_job(
    job: Sequence[StrPath],
    framework: str | None = None,
    engine_version: str = "",
    te_version: str = "",
    framework_version: str = "",
    *,
    scan_checkpoints: bool = True,
    show_settings: bool = False,
    here: bool = False,
    env: Sequence[str] = (),
    select: Sequence[str] = (),
    ignore: Sequence[str] = (),
) -> tuple[Job, Report]:
    """Return a job as `preflight` reads it, and what it finds in it."""
    from ckptcheck.linter.rule_loader import load_rules
    from ckptcheck.linter.selection import match_rules, select_rules
    from ckptcheck.preflight.job import build_settings_section
    from ckptcheck.preflight.open_job import open_job, split_variables
    from ckptcheck.preflight.this_machine import Probe

    loaded = load_rules()
    ignored = {rule.code: "ignored on the command line" for pattern in ignore for rule in match_rules(loaded, pattern)}
    selected = select_rules(loaded, select)
    opened = open_job(
        [os.fspath(part) for part in job], framework=framework, engine_version=engine_version, te_version=te_version,
        framework_version=framework_version, scan=scan_checkpoints, here=Probe() if here else None,
        environment=split_variables(env),
    )  # fmt: skip
    opened.lists_settings = show_settings
    if show_settings:
        opened.sections = (build_settings_section(opened), *opened.sections)
    return opened, _report(opened, loaded, selected=selected, ignored=ignored)


def gate(
    *job: StrPath,
    deadline: str | float | None = None,
    stages: Sequence[str] = (),
    go_on: bool | None = None,
    folder: StrPath | None = None,
    model: StrPath | None = None,
    fail_on: FailOn = "error",
    observer: Observer = SILENT,
) -> Report:
    """Check a job before it starts: its configuration, its checkpoints, a weight sync, and the first step's parity.

    The stages run in the order of their cost, as the job's own file says. A stage with findings ends the gate. One that did not
    fit into the deadline, or could not check the job for another reason, makes the report incomplete: it has not passed. What
    finished is kept for a day in `folder`, and a gate that starts again uses it.

    Args:
        job: a gate file (TOML with the key ``job``), or the job's own files; and ``key=value`` overrides of the job.
        deadline: how long the gate may take: ``10 min``, or seconds; None: as the gate file says, else as long as it needs.
        stages: those that run: preflight, scan, refit, parity; (): as the gate file says, else all.
        go_on: run the dearer stages although a cheaper one has findings; None: as the gate file says, else not.
        folder: the folder that keeps what finished; None: as the gate file says, else one named after the file, ``train.gate``.
        model: the checkpoint to check in place of the one that the job names, for a copy of it elsewhere on this disk.
        fail_on: the lightest severity that ends the gate.
        observer: receives messages.

    """
    import time

    began = time.monotonic()
    stages = _wrap_single(stages)
    from ckptcheck.gate.gate_file import STAGES, parse_duration, read_gate_request
    from ckptcheck.gate.plan import check_options
    from ckptcheck.gate.run_gate import run_gate

    functions: dict[str, Callable[..., Any]] = {
        "preflight": preflight, "scan_all": scan_all, "refit": refit, "record_rollouts": record_rollouts,
        "score_rollouts": score_rollouts, "judge": judge,
    }  # fmt: skip
    request = read_gate_request([os.fspath(part) for part in job])
    if not request.job:
        raise CkptcheckError("no job is named", hint="name the job's own file, or a gate file")
    request = replace(
        request,
        deadline=request.deadline if deadline is None else parse_duration(deadline),
        stages=_subset(stages, STAGES, "--stages") if stages else request.stages,
        goes_on=request.goes_on if go_on is None else go_on,
        folder=_path(folder) or request.folder,
        model=request.model if model is None else os.fspath(model),
    )
    check_options(request, functions)
    opened, report = _open_job(request.job, **request.options.get("preflight", {}))
    return run_gate(opened, report, request, functions, fail_on, observer, began)


# --- weight syncs ---


def refit(
    source: StrPath,
    *,
    engine: str = "vllm",
    trainer: TrainerName = "megatron",
    tp: int = 1,
    pp: int = 1,
    ep: int = 1,
    engine_tp: int = 1,
    engine_ep: int = 1,
    engine_pp: int = 1,
    engine_dp: int = 1,
    engine_mode: EngineMode = "plain",
    transport: str | None = None,
    quantize: Scheme | None = None,
    ignore: Sequence[str] | None = None,
    trainer_quantizer: Quantizer = "compressed-tensors",
    dtype: Dtype = "float32",
    device: Device = "auto",
    trainer_gpus: str | None = None,
    engine_gpus: str | None = None,
    switch: Sequence[str] = (),
    bucket_mb: float = 64.0,
    pause: str | None = None,
    sleep_level: int = 1,
    steps: int = 1,
    perturb: float | None = None,
    fast: bool = False,
    check_weights: bool = True,
    check_logprobs: bool = True,
    hf_config: StrPath | None = None,
    engine_python: StrPath | None = None,
    trainer_python: StrPath | None = None,
    timeout: Sequence[str] = (),
    record: StrPath | None = None,
    despite_errors: bool = False,
    keep: bool = False,
    observer: Observer = SILENT,
) -> Report:
    """Sync a trainer's weights into a live engine, at step 0 and after steps, and compare with a cold load of the same weights.

    Args:
        source: a Hugging Face checkpoint or a Megatron run on this disk.
        engine: the inference engine: vllm or sglang.
        trainer: the trainer that holds the weights.
        tp: tensor parallelism of the trainer.
        pp: pipeline parallelism of the trainer.
        ep: expert parallelism of the trainer.
        engine_tp: tensor parallelism of the engine.
        engine_ep: expert parallelism of the engine, within the ranks of engine_tp.
        engine_pp: pipeline stages of the engine; a trial has one.
        engine_dp: replicas of the engine; a trial has one.
        engine_mode: plain keeps weights readable on a CPU; stock leaves the engine as it is.
        transport: how weights reach the engine; None: the engine's first.
        quantize: quantize the weights on their way.
        ignore: entries of the list of modules that are not quantized; None: the head and the routers.
        trainer_quantizer: whose reading of the ignore list decides what is quantized.
        dtype: what both sides compute in.
        device: where the trainer computes; auto: on GPUs where there are any, one for each rank.
        trainer_gpus: GPUs that the trainer may see, comma-separated; None: all.
        engine_gpus: GPUs that the engine may see, comma-separated; None: all.
        switch: settings of the engine, as ``NAME=VALUE``.
        bucket_mb: MB of a bucket of the first sync.
        pause: what becomes of a request that runs during the sync; None: none runs.
        sleep_level: what becomes of the weights while the engine sleeps: 1 kept on the host, 2 dropped.
        steps: optimizer steps, each followed by two syncs.
        perturb: scale of the noise that moves every weight in place of a step.
        fast: leave out scoring by decoding, as a gate in CI does; the report says what that leaves unseen.
        check_weights: compare every tensor with a cold load.
        check_logprobs: compare logprobs on both sides.
        hf_config: folder with the config.json of a Megatron run's model.
        engine_python: a Python that has the engine; None: the one that ckptcheck installed.
        trainer_python: a Python that has the trainer; None: the one that ckptcheck installed.
        timeout: seconds of the phases, as ``SECONDS`` or ``PHASE=SECONDS`` (start, score, step, sync).
        record: file that the syncs are appended to, see `history`.
        despite_errors: go on where a scan of the source finds errors; the report names them.
        keep: keep the checkpoints that are written on the way.
        observer: receives messages.

    Raises CkptcheckError for what cannot be started, and `RecordError`, which carries the report, where the trial is over and the
    record cannot be written.

    """
    switch = _wrap_single(switch)
    timeout = _wrap_single(timeout)
    ignore = _wrap_single(ignore) if ignore is not None else None
    _require_ranges(
        tp=tp, pp=pp, ep=ep, engine_tp=engine_tp, engine_ep=engine_ep, engine_pp=engine_pp, engine_dp=engine_dp,
        bucket_mb=bucket_mb, sleep_level=sleep_level, steps=steps,
        perturb=perturb,
    )  # fmt: skip
    trainer_gpus = _normalize_gpus("--trainer-gpus", trainer_gpus)
    engine_gpus = _normalize_gpus("--engine-gpus", engine_gpus)
    from ckptcheck.linter.rule_loader import load_rules
    from ckptcheck.refit.feasibility import check_quantization, require_engine_layout
    from ckptcheck.refit.history.record import Record
    from ckptcheck.refit.live_trial import (
        TrialEngine,
        TrialQuantization,
        TrialSource,
        TrialTrainer,
        run_live_trial,
    )
    from ckptcheck.refit.recording import RecordError, append_to_record
    from ckptcheck.refit.settings import TrialSettings
    from ckptcheck.refit.source import add_source_errors
    from ckptcheck.refit.timeouts import parse_timeouts
    from ckptcheck.runtime.engines import registry
    from ckptcheck.unused_options import Arguments, reject_unused_refit_options

    given = Arguments(refit, locals())
    reject_unused_refit_options(
        given, device=device, quantizes=quantize is not None, steps=steps, checks_weights=check_weights,
        checks_logprobs=check_logprobs, timeouts=timeout,
    )  # fmt: skip
    _require_choices(trainer=(trainer, TrainerName), engine_mode=(engine_mode, EngineMode), dtype=(dtype, Dtype))
    _require_choices(
        device=(device, Device), quantize=(quantize, Scheme), trainer_quantizer=(trainer_quantizer, Quantizer)
    )
    chosen_transport = registry.choose_transport(engine, transport)
    require_engine_layout(engine, tp=engine_tp, ep=engine_ep, pp=engine_pp, dp=engine_dp)
    if quantize is not None:
        check_quantization(quantize, engine, chosen_transport, dtype)
    if record is not None:
        Record(Path(record)).check_writable()
    settings = TrialSettings(
        steps=steps,
        bucket_bytes=round(bucket_mb * 1e6),
        second_bucket_bytes=max(1, round(bucket_mb * 1e6 / 9)),
        transport=chosen_transport,
        perturb=perturb,
        weights=check_weights,
        logprobs=check_logprobs,
        timeouts=parse_timeouts(timeout),
        pause=registry.choose_pause(engine, pause, chosen_transport, sleep_level),
        sleep_level=sleep_level,
        decode=0 if fast else TrialSettings.decode,
    )
    loaded = load_rules()
    trial_source = TrialSource(os.fspath(source), _path(hf_config), despite_errors, keep)
    record_error: CkptcheckError | None = None
    with run_live_trial(
        trial_source, settings,
        TrialEngine(engine, engine_tp, engine_mode, switch, engine_gpus, _path(engine_python), engine_ep),
        TrialTrainer(trainer, tp, pp, ep, device, trainer_gpus, _path(trainer_python)),
        dtype=dtype, quantization=TrialQuantization(quantize, ignore, trainer_quantizer) if quantize is not None else None,
        observer=observer,
    ) as trace:  # fmt: skip
        report = add_source_errors(_report(trace, loaded), trial_source.errors)
        try:
            if record is not None:
                append_to_record(trace, Path(record))
        except CkptcheckError as error:
            # the trial is over, and its findings are worth more than the record
            record_error = error
    if record_error is not None:
        raise RecordError(record_error.message, report) from record_error
    return report


def conformance(
    source: StrPath | None = None,
    *,
    transport: str | Callable[[], WeightTransport] | None = None,
    engine: str = "vllm",
    engine_tp: int = 1,
    engine_mode: EngineMode = "plain",
    dtype: Dtype = "float32",
    engine_gpus: str | None = None,
    switch: Sequence[str] = (),
    hf_config: StrPath | None = None,
    engine_python: StrPath | None = None,
    despite_errors: bool = False,
    markdown: StrPath | None = None,
    observer: Observer = SILENT,
) -> Report:
    """Put faults on a transport, one after the other, and report how each was answered (``ckptcheck refit --conformance``).

    Args:
        source: a checkpoint whose weights are sent; None, for a transport of your own: random ones of the receiver's shapes.
        transport: how weights reach the engine, by its name (None: the engine's first), or one of your own: a class with five
            methods, or its name as ``module:Class``.
        engine: the inference engine: vllm or sglang.
        engine_tp: tensor parallelism of the engine.
        engine_mode: plain keeps weights readable on a CPU; stock leaves the engine as it is.
        dtype: what the engine computes in.
        engine_gpus: GPUs that the engine may see, comma-separated; None: all.
        switch: settings of the engine, as ``NAME=VALUE``.
        hf_config: folder with the config.json of a Megatron run's model.
        engine_python: a Python that has the engine; None: the one that ckptcheck installed.
        despite_errors: go on where a scan of the source finds errors; the report names them.
        markdown: file for the table in Markdown.
        observer: receives messages.

    Raises CkptcheckError for what cannot be started.

    """
    switch = _wrap_single(switch)
    _require_ranges(engine_tp=engine_tp)
    engine_gpus = _normalize_gpus("--engine-gpus", engine_gpus)
    from ckptcheck.refit.conformance.live_run import is_own_transport, try_engine_transport, try_own_transport
    from ckptcheck.refit.live_trial import TrialEngine, TrialSource
    from ckptcheck.refit.source import add_source_errors
    from ckptcheck.runtime.engines import registry
    from ckptcheck.text.file_io import replace_file, require_writable
    from ckptcheck.unused_options import Arguments, reject_unused_conformance_options

    is_own = is_own_transport(transport)
    reject_unused_conformance_options(Arguments(conformance, locals()), is_own=is_own, has_source=source is not None)
    _require_choices(engine_mode=(engine_mode, EngineMode), dtype=(dtype, Dtype))
    if markdown is not None:
        require_writable(Path(markdown))
    trial_source = None if source is None else TrialSource(os.fspath(source), _path(hf_config), despite_errors)
    if transport is not None and (is_own or not isinstance(transport, str)):
        trace = try_own_transport(transport, trial_source, observer=observer)
    elif trial_source is None:
        raise CkptcheckError(
            "there are no weights to send", hint="name a checkpoint, or a transport of your own by module:Class"
        )
    else:
        trace = try_engine_transport(
            registry.choose_transport(engine, transport), trial_source,
            TrialEngine(engine, engine_tp, engine_mode, switch, engine_gpus, _path(engine_python)),
            dtype=dtype, observer=observer,
        )  # fmt: skip
    report = add_source_errors(_report(trace), trial_source.errors if trial_source is not None else None)
    if markdown is not None:
        replace_file(Path(markdown), trace.markdown().encode())
    return report


def attach(
    *servers: str,
    source: StrPath | None = None,
    allow_write: bool = False,
    allow_remote: bool = False,
    trainer: TrainerName = "transformers",
    tp: int = 1,
    pp: int = 1,
    ep: int = 1,
    device: Device = "auto",
    trainer_gpus: str | None = None,
    check_weights: bool = True,
    check_logprobs: bool = True,
    hf_config: StrPath | None = None,
    engine_python: StrPath | None = None,
    trainer_python: StrPath | None = None,
    timeout: Sequence[str] = (),
    despite_errors: bool = False,
    keep: bool = False,
    observer: Observer = SILENT,
) -> Report:
    """Compare running SGLang or vLLM servers with a checkpoint and with each other (``ckptcheck refit --attach``).

    Args:
        servers: URLs. The environment variable CKPTCHECK_API_KEY has their API key.
        source: the checkpoint that they should serve; None: the servers are compared with each other only.
        allow_write: overwrite the servers' weights and have them load `source`.
        allow_remote: accept servers on other machines.
        trainer: the trainer whose logprobs the servers' are compared with.
        tp: tensor parallelism of the trainer.
        pp: pipeline parallelism of the trainer.
        ep: expert parallelism of the trainer.
        device: where the trainer computes.
        trainer_gpus: GPUs that the trainer may see, comma-separated; None: all.
        check_weights: compare checksums of the weights with those of an engine that is started here.
        check_logprobs: compare logprobs.
        hf_config: folder with the config.json of a Megatron run's model.
        engine_python: a Python that has the engine; None: the one that ckptcheck installed.
        trainer_python: a Python that has the trainer; None: the one that ckptcheck installed.
        timeout: seconds of the phases, as ``SECONDS`` or ``PHASE=SECONDS`` (start, score).
        despite_errors: go on where a scan of the source finds errors; the report names them.
        keep: keep the checkpoints that are written on the way.
        observer: receives messages.

    """
    timeout = _wrap_single(timeout)
    _require_ranges(tp=tp, pp=pp, ep=ep)
    trainer_gpus = _normalize_gpus("--trainer-gpus", trainer_gpus)
    import tempfile
    from contextlib import ExitStack

    from ckptcheck.linter.rule_loader import load_rules
    from ckptcheck.refit.live_trial import clean_up_folder
    from ckptcheck.refit.running_servers.attach import AttachOptions, attach_to_servers
    from ckptcheck.refit.source import add_source_errors, open_source
    from ckptcheck.refit.timeouts import parse_timeouts
    from ckptcheck.runtime.process.signal_guard import SignalGuard
    from ckptcheck.runtime.trainers.layout import ParallelLayout
    from ckptcheck.runtime.trainers.registry import start_trainer
    from ckptcheck.unused_options import Arguments, reject_unused_attach_options

    given = Arguments(attach, locals())
    reject_unused_attach_options(
        given, device=device, has_source=source is not None, checks_weights=check_weights, checks_logprobs=check_logprobs,
        timeouts=timeout,
    )  # fmt: skip
    _require_choices(trainer=(trainer, TrainerName), device=(device, Device))
    if not servers:
        raise CkptcheckError("there is no server to attach to", hint="name the URL of a running SGLang or vLLM")
    loaded = load_rules()
    timeouts = parse_timeouts(timeout)

    def start(checkpoint: Any, exchange: TensorExchange, computed: str) -> Trainer:
        """Start the trainer that gives the logprobs."""
        return start_trainer(
            trainer, checkpoint, exchange, ParallelLayout(tp=tp, pp=pp, ep=ep), computed, device=device, gpus=trainer_gpus,
            python=_path(trainer_python), scratch=(exchange.folder,),
        )  # fmt: skip

    options = AttachOptions(
        servers, start, timeouts, allow_write=allow_write, allow_remote=allow_remote, check_weights=check_weights,
        check_logprobs=check_logprobs, engine_python=_path(engine_python),
    )  # fmt: skip
    errors: list[str] | None = [] if despite_errors else None
    with SignalGuard() as signal_guard, ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="ckptcheck-refit-"))
        stack.callback(clean_up_folder, folder, keep, observer)
        ckpt = None
        if source is not None:
            ckpt = open_source(os.fspath(source), folder / "source", _path(hf_config), tolerated=errors)
        report = _report(attach_to_servers(ckpt, options, observer.log), loaded)
        signal_guard.ignore_signals()
    return add_source_errors(report, errors)


def lora(
    source: StrPath,
    adapter: StrPath,
    *,
    engine: str = "vllm",
    update: AdapterUpdate = "reload",
    engine_tp: int = 1,
    engine_mode: EngineMode = "plain",
    dtype: Dtype = "float32",
    engine_gpus: str | None = None,
    engine_python: StrPath | None = None,
    timeout: Sequence[str] = (),
    observer: Observer = SILENT,
) -> Report:
    """Load a LoRA adapter into a live engine, evict it, replace it under its name, and check what requests with it compute.

    Args:
        source: the base model, a checkpoint on this disk.
        adapter: the folder of the adapter, as PEFT writes it.
        engine: the inference engine: vllm or sglang.
        update: how a new adapter is loaded under the old name: reload, inplace or same.
        engine_tp: tensor parallelism of the engine.
        engine_mode: plain keeps weights readable on a CPU; stock leaves the engine as it is.
        dtype: what the engine computes in.
        engine_gpus: GPUs that the engine may see, comma-separated; None: all.
        engine_python: a Python that has the engine; None: the one that ckptcheck installed.
        timeout: seconds of the phases, as ``SECONDS`` or ``PHASE=SECONDS`` (start, sync).
        observer: receives messages.

    Raises CkptcheckError for what cannot be opened or started.

    """
    _require_ranges(engine_tp=engine_tp)
    _require_choices(update=(update, AdapterUpdate), engine_mode=(engine_mode, EngineMode), dtype=(dtype, Dtype))
    engine_gpus = _normalize_gpus("--engine-gpus", engine_gpus)
    from ckptcheck.refit.live_trial import TrialEngine
    from ckptcheck.refit.lora.live_trial import run_live_lora_trial
    from ckptcheck.refit.timeouts import parse_timeouts
    from ckptcheck.runtime.engines import registry
    from ckptcheck.unused_options import reject_unused_lora_phases

    timeout = _wrap_single(timeout)
    reject_unused_lora_phases(timeout)
    timeouts = parse_timeouts(timeout)
    registry.require_engine(engine)
    trial_engine = TrialEngine(engine, engine_tp, engine_mode, (), engine_gpus, _path(engine_python))
    with run_live_lora_trial(
        os.fspath(source), Path(adapter), trial_engine, dtype=dtype, update=update, timeouts=timeouts, observer=observer
    ) as trace:
        return _report(trace)


def history(file: StrPath) -> Report:
    """Say which tensors changed at each weight sync, what was never updated, and whether the version moved.

    file: the record that ``refit(record=...)`` or `ckptcheck.watch` wrote.
    """
    from ckptcheck.refit.history.history import open_history

    return _report(open_history(Path(file)))


def follow_history(file: StrPath) -> Iterator[Report]:
    """Yield a report as `history` does, now and whenever a sync was added (``ckptcheck refit history --watch``).

    It never ends by itself. A record that does not exist yet is waited for.

    file: the record of a job that runs.
    """
    from ckptcheck.linter.rule_loader import load_rules
    from ckptcheck.refit.history.follow import follow_history as follow

    loaded = load_rules()
    for record in follow(Path(file)):
        yield _report(record, loaded)


# --- parity ---


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
    plots: StrPath | None = None,
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
        plots: folder for plots (needs the extra ``plots``).
        observer: receives messages.

    """
    return judge_all(
        [file], floor=floor, max_mult_prob_error=max_mult_prob_error, max_kl=max_kl, max_prob_diff=max_prob_diff,
        max_abs=max_abs, max_sequence_error=max_sequence_error, max_floor_multiple=max_floor_multiple, max_lag=max_lag,
        clip_low=clip_low, clip_high=clip_high, no_limits=no_limits, exact=exact, checkpoint=checkpoint,
        history=history, tokenizer=tokenizer, plots=plots, observer=observer,
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
    plots: StrPath | None = None,
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
        plots: see `judge`.
        observer: see `judge`.

    """
    files, against = _wrap_single(files), _wrap_single(against)
    _require_ranges(
        max_mult_prob_error=max_mult_prob_error, max_kl=max_kl, max_prob_diff=max_prob_diff, max_abs=max_abs,
        max_sequence_error=max_sequence_error, max_floor_multiple=max_floor_multiple, max_lag=max_lag, clip_low=clip_low,
        clip_high=clip_high,
    )  # fmt: skip
    from ckptcheck.linter.report import Reports
    from ckptcheck.linter.rule_loader import load_rules
    from ckptcheck.parity import rollouts
    from ckptcheck.parity.labelled_weights import read_labelled_weights
    from ckptcheck.parity.metrics.noise_floor import read_noise_floor
    from ckptcheck.parity.rollout_evidence import RolloutEvidence
    from ckptcheck.parity.rollouts.files import list_rollout_files
    from ckptcheck.parity.run_comparison import RunComparison
    from ckptcheck.parity.series import RolloutSeries
    from ckptcheck.parity.series_member import SeriesMember
    from ckptcheck.parity.thresholds import Thresholds
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
        from ckptcheck.parity.sampling_checkpoint import SamplingCheckpoint

        drawn_by = SamplingCheckpoint(open_checkpoint(os.fspath(checkpoint)))
        if tokenizer is None and (Path(checkpoint) / "tokenizer.json").is_file():
            tokenizer = checkpoint
    weights = read_labelled_weights(Path(history)) if history is not None else ()
    decode_text = _load_decoder(Path(tokenizer)) if tokenizer is not None else None
    decode = None if decode_text is None else lambda token: repr(decode_text([token])) if token >= 0 else "–"
    if plots is not None:
        from ckptcheck.parity import plots as drawing

        drawing.require_matplotlib()
    loaded = load_rules()
    reports: list[Report] = []
    members: list[SeriesMember] = []
    paths = list_rollout_files([Path(file) for file in files])
    for path in paths:
        evidence = RolloutEvidence(
            str(path), rollouts.read_rollouts(path), thresholds, noise_floor, decode, decode_text=decode_text,
            drawn_by=drawn_by, weights=weights,
        )  # fmt: skip
        reports.append(_report(evidence, loaded))
        if plots is not None and evidence.metrics_or_none is not None:
            stem = path.stem if len(paths) == 1 else f"{len(members)}-{path.stem}"
            for drawn in drawing.draw_plots(evidence, Path(plots), stem):
                observer.log(f"drew {drawn}")
        elif plots is not None:
            observer.log(f"nothing to draw of {path}: no token could be compared")
        members.append(SeriesMember.of(evidence))
    series = RolloutSeries.of(members, thresholds)
    if len(paths) > 1:
        reports.append(_report(series, loaded))
    if against:
        reference = [
            SeriesMember.of(RolloutEvidence(str(path), rollouts.read_rollouts(path), thresholds))
            for path in list_rollout_files([Path(file) for file in against])
        ]
        reports.append(_report(RunComparison(series, RolloutSeries.of(reference, thresholds)), loaded))
    return Reports(tuple(reports))


def _load_decoder(folder: Path) -> Callable[[Sequence[int]], str]:
    """Return a function from token ids to their text. Raises CkptcheckError where no tokenizer.json can be read."""
    from tokenizers import Tokenizer

    path = folder / "tokenizer.json" if folder.is_dir() else folder
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exceptions
        raise CkptcheckError(f"cannot read the tokenizer {path}: {error}") from error
    return lambda tokens: str(tokenizer.decode(list(tokens), skip_special_tokens=False))


def _log_responses(rollouts: Rollouts, source: Path, observer: Observer) -> None:
    """Write the texts of the first responses, and whether they are coherent."""
    from ckptcheck.linter.rule_loader import load_rules
    from ckptcheck.parity.response_texts import read_texts
    from ckptcheck.parity.rollout_evidence import RolloutEvidence

    decode_text = _load_decoder(source) if (source / "tokenizer.json").is_file() else None
    for text in read_texts(rollouts, decode_text) if decode_text is not None else ():
        mean = "" if text.logprob is None else f" (mean logprob {text.logprob:.3g})"
        observer.log(f"{text.prompt} → {text.response}{mean}")
    rules = [rule for rule in load_rules() if rule.code in COHERENCE_RULES]
    report = _report(RolloutEvidence(os.fspath(source), rollouts), rules)
    for finding in report.findings:
        observer.log(f"{finding.code} {finding.severity}: {finding.message}")
    if not report.findings and report.passed:
        observer.log("the responses look coherent: none of their tokens loop, and the engine finds them likely")


def record_rollouts(
    source: StrPath,
    output: StrPath | None = None,
    *,
    engine: str = "vllm",
    prompts: StrPath | None = None,
    number: int = 8,
    length: int = 96,
    response: int = 32,
    batch: int = 8,
    temperature: float = 1.0,
    top_p: float = 1.0,
    top_k: int = 0,
    presence_penalty: float = 0.0,
    frequency_penalty: float = 0.0,
    repetition_penalty: float = 1.0,
    seed: int = 0,
    full: int = 0,
    routing: bool = False,
    ignore_eos: bool = False,
    step: int | None = None,
    dtype: Dtype = "float32",
    switch: Sequence[str] = (),
    engine_mode: EngineMode = "plain",
    engine_tp: int = 1,
    engine_python: StrPath | None = None,
    timeout: float = 900.0,
    observer: Observer = SILENT,
) -> Rollouts:
    """Have an engine answer prompts, and return tokens and logprobs (``ckptcheck parity record``). No trainer is loaded.

    Args:
        source: a Hugging Face checkpoint or a Megatron run on this disk.
        output: file that the rollouts are written to; None: none.
        engine: the inference engine: vllm or sglang.
        prompts: file of prompts: JSON lines (tokens, messages, text), or plain lines; None: built-in ones.
        number: prompts to answer.
        length: tokens of a built-in prompt, at most.
        response: tokens of a response, at most.
        batch: prompts that are answered at once.
        temperature: sampling temperature; 0: greedy.
        top_p: nucleus sampling; 1: off.
        top_k: sampling from the k most likely tokens; 0: off.
        presence_penalty: taken from the logits of tokens that the response has already; 0: off.
        frequency_penalty: taken as often as the response has a token already; 0: off.
        repetition_penalty: divides positive logits of tokens that are there already, and multiplies negative ones; 1: off.
        seed: seed of the first prompt; every further prompt adds 1.
        full: response tokens of which the logprobs of the whole vocabulary are kept.
        routing: also keep which experts tokens went to.
        ignore_eos: go on past end tokens.
        step: step of the training run, kept with the rollouts.
        dtype: what the engine computes in.
        switch: settings of the engine, as ``NAME=VALUE``.
        engine_mode: plain keeps weights readable on a CPU; stock leaves the engine as it is.
        engine_tp: tensor parallelism of the engine.
        engine_python: a Python that has the engine; None: the one that ckptcheck installed.
        timeout: seconds for any one call.
        observer: receives messages and progress.

    """
    switch = _wrap_single(switch)
    _require_ranges(
        number=number, length=length, response=response, batch=batch, temperature=temperature, top_p=top_p, top_k=top_k,
        presence_penalty=presence_penalty, frequency_penalty=frequency_penalty, repetition_penalty=repetition_penalty,
        seed=seed, full=full, step=step, engine_tp=engine_tp, timeout=timeout,
    )  # fmt: skip
    from ckptcheck.parity.default_prompts import DefaultPrompts
    from ckptcheck.parity.expert_layout import read_expert_layout
    from ckptcheck.parity.expert_routing import add_expert_routing
    from ckptcheck.parity.full_vocab import add_full_vocab_logprobs
    from ckptcheck.parity.live_session import effective_logprobs, open_live_session, with_batch_size
    from ckptcheck.parity.record import record_rollouts as record
    from ckptcheck.parity.rollouts import Metadata, write_rollouts
    from ckptcheck.parity.scoring import engine_logprob_temperature
    from ckptcheck.runtime.engines import registry
    from ckptcheck.runtime.engines.engine_options import parse_switches
    from ckptcheck.runtime.engines.sampling import Sampling
    from ckptcheck.text.file_io import require_output_apart, require_writable
    from ckptcheck.unused_options import Arguments, reject_unused_length

    given = Arguments(record_rollouts, locals())
    reject_unused_length(given, has_prompts=prompts is not None)
    _require_choices(dtype=(dtype, Dtype), engine_mode=(engine_mode, EngineMode))
    require_output_apart(_path(output), _path(prompts), Path(source))
    # raises CkptcheckError where there is no such engine
    registry.require_engine(engine)
    require_writable(_path(output))
    switches = parse_switches(list(switch))
    sampling = Sampling(
        temperature, top_p, top_k, response, seed, ignore_eos, presence_penalty, frequency_penalty, repetition_penalty
    )
    with open_live_session(
        os.fspath(source), timeout=timeout, engine_python=_path(engine_python), observer=observer
    ) as live:
        default_prompts = DefaultPrompts(live.ckpt)
        prompt_tokens = default_prompts.choose(length, number, _path(prompts))
        context_len = max(map(len, prompt_tokens)) + response + SPARE_TOKENS
        with observer.phase(f"starting {engine}"):
            running = live.start_engine(
                engine, dtype=dtype, ranks=engine_tp, mode=engine_mode, context_len=context_len,
                concurrent_sequences=max(8, batch), switches=with_batch_size(switches, batch),
            )  # fmt: skip
        try:
            live.log_ignored_switches(running)
            metadata = Metadata(
                model=os.fspath(source), step=step, logprobs=effective_logprobs(running, switches),
                vocabulary=default_prompts.vocabulary, max_model_len=context_len,
                experts=None if (layout := read_expert_layout(live.ckpt)) is None else layout.experts,
                stop_tokens=sorted(default_prompts.stop_tokens),
            )  # fmt: skip
            with observer.progress("answering", bytewise=False) as advance:
                rollouts = record(
                    running, prompt_tokens, sampling, metadata, batch=batch, timeout=timeout, advance=advance
                )
            if full:
                heat = engine_logprob_temperature(rollouts.metadata)
                rollouts = add_full_vocab_logprobs(
                    rollouts, "engine", running, live.folder, number=full, temperature=heat
                )
            if routing:
                rollouts = add_expert_routing(rollouts, "engine", running)
                if "engine_routing" not in rollouts:
                    observer.log(f"{engine} does not tell which experts tokens go to")
        finally:
            running.close()
    if output is not None:
        write_rollouts(rollouts, Path(output))
        observer.log(f"{rollouts.sequence_count} responses, {len(rollouts.tokens):,} tokens: {output}")
    _log_responses(rollouts, Path(source), observer)
    return rollouts


def score_rollouts(
    file: StrPath,
    source: StrPath,
    output: StrPath | None = None,
    *,
    trainer: TrainerName = "transformers",
    temperature: float | None = None,
    trainer_version: int | None = None,
    tp: int = 1,
    pp: int = 1,
    ep: int = 1,
    dtype: Dtype = "float32",
    head_fp32: bool = False,
    tokens: int = 8192,
    trainer_python: StrPath | None = None,
    timeout: float = 900.0,
    observer: Observer = SILENT,
) -> Rollouts:
    """Have a trainer score rollouts, and return them with its logprobs (``ckptcheck parity score``). No engine is loaded.

    Args:
        file: rollouts, as `record_rollouts` or `convert_rollouts` wrote them.
        source: the checkpoint that scores them.
        output: file that the rollouts are written to; None: none.
        trainer: the trainer that scores.
        temperature: what logits are divided by; None: the temperature of the engine's logprobs.
        trainer_version: version of its weights, as the engine counts them: what lag is counted from.
        tp: tensor parallelism of the trainer.
        pp: pipeline parallelism of the trainer.
        ep: expert parallelism of the trainer.
        dtype: what the trainer computes in.
        head_fp32: its output head computes in float32.
        tokens: tokens that the trainer is handed at once, padding included.
        trainer_python: a Python that has the trainer; None: the one that ckptcheck installed.
        timeout: seconds for any one call.
        observer: receives messages and progress.

    """
    _require_ranges(trainer_version=trainer_version, tp=tp, pp=pp, ep=ep, timeout=timeout)
    _require_range("temperature", temperature, NumberRange(1e-6))
    _require_range("tokens", tokens, FROM_ONE)
    from ckptcheck.parity.live_session import open_live_session
    from ckptcheck.parity.rollouts import read_rollouts, write_rollouts
    from ckptcheck.parity.scoring import score_rollouts
    from ckptcheck.runtime.trainers.layout import ParallelLayout
    from ckptcheck.text.file_io import require_output_apart, require_writable

    _require_choices(trainer=(trainer, TrainerName), dtype=(dtype, Dtype))
    require_output_apart(_path(output), Path(file), Path(source))
    require_writable(_path(output))
    rollouts = read_rollouts(Path(file))
    if rollouts.defects:
        raise CkptcheckError(
            f"{file} cannot be scored: {rollouts.defects[0].text}", hint=f"ckptcheck parity judge {file}"
        )
    with open_live_session(
        os.fspath(source), timeout=timeout, trainer_python=_path(trainer_python), observer=observer
    ) as live:
        layout = ParallelLayout(tp=tp, pp=pp, ep=ep)
        with observer.phase(f"starting {trainer}"):
            scorer = live.start_trainer(trainer, dtype=dtype, head_fp32=head_fp32, layout=layout)
        try:
            with observer.progress("scoring", bytewise=False) as advance:
                scored = score_rollouts(
                    rollouts, scorer, temperature=temperature, version=trainer_version, tokens=tokens,
                    folder=live.folder, advance=advance,
                )  # fmt: skip
        finally:
            scorer.close()
    if output is not None:
        write_rollouts(scored, Path(output))
        observer.log(f"{scored.sequence_count} sequences scored: {output}")
    return scored


def calibrate_floor(
    source: StrPath,
    output: StrPath | None = None,
    *,
    engine: str = "vllm",
    trainer: TrainerName = "transformers",
    prompts: StrPath | None = None,
    number: int = 8,
    length: int = 96,
    response: int = 32,
    dtype: Dtype = "float32",
    trainer_dtype: Dtype | None = None,
    head_fp32: bool = False,
    tp: int = 1,
    pp: int = 1,
    ep: int = 1,
    switch: Sequence[str] = (),
    engine_mode: EngineMode = "plain",
    engine_tp: int = 1,
    engine_python: StrPath | None = None,
    trainer_python: StrPath | None = None,
    timeout: float = 900.0,
    observer: Observer = SILENT,
) -> FloorMeasurement:
    """Measure the noise floor of a model (``ckptcheck parity calibrate``).

    The floor is the gap between the logprobs of both sides with equal weights, and of each side with itself.

    Args:
        source: a Hugging Face checkpoint or a Megatron run on this disk.
        output: file that the floor is written to; None: none.
        engine: the inference engine: vllm or sglang.
        trainer: the trainer that scores.
        prompts: file of prompts: JSON lines (tokens, messages, text), or plain lines; None: built-in ones.
        number: prompts.
        length: tokens of a built-in prompt, at most.
        response: tokens of a response.
        dtype: what the engine computes in.
        trainer_dtype: what the trainer computes in; None: as `dtype`.
        head_fp32: the trainer's output head computes in float32.
        tp: tensor parallelism of the trainer.
        pp: pipeline parallelism of the trainer.
        ep: expert parallelism of the trainer.
        switch: settings of the engine, as ``NAME=VALUE``.
        engine_mode: plain keeps weights readable on a CPU; stock leaves the engine as it is.
        engine_tp: tensor parallelism of the engine.
        engine_python: a Python that has the engine; None: the one that ckptcheck installed.
        trainer_python: a Python that has the trainer; None: the one that ckptcheck installed.
        timeout: seconds for any one call.
        observer: receives messages.

    """
    switch = _wrap_single(switch)
    _require_ranges(
        number=number, length=length, response=response, tp=tp, pp=pp, ep=ep, engine_tp=engine_tp, timeout=timeout
    )
    from ckptcheck.parity.calibrate import calibrate
    from ckptcheck.parity.default_prompts import DefaultPrompts
    from ckptcheck.parity.live_session import describe_side, open_live_session, with_batch_size
    from ckptcheck.runtime.engines import registry
    from ckptcheck.runtime.engines.engine_options import parse_switches
    from ckptcheck.runtime.trainers.layout import ParallelLayout
    from ckptcheck.text.file_io import require_output_apart, require_writable
    from ckptcheck.unused_options import Arguments, reject_unused_length

    given = Arguments(calibrate_floor, locals())
    reject_unused_length(given, has_prompts=prompts is not None)
    _require_choices(trainer=(trainer, TrainerName), engine_mode=(engine_mode, EngineMode))
    _require_choices(dtype=(dtype, Dtype), trainer_dtype=(trainer_dtype, Dtype))
    # raises CkptcheckError where there is no such engine
    registry.require_engine(engine)
    require_output_apart(_path(output), _path(prompts), Path(source))
    require_writable(_path(output))
    switches = parse_switches(list(switch))
    with open_live_session(
        os.fspath(source), timeout=timeout, engine_python=_path(engine_python), trainer_python=_path(trainer_python),
        observer=observer,
    ) as live:  # fmt: skip
        default_prompts = DefaultPrompts(live.ckpt)
        prompt_tokens = default_prompts.choose(length, number, _path(prompts))
        context_len = max(map(len, prompt_tokens)) + response + SPARE_TOKENS
        observer.log(f"starting {engine} and {trainer}")
        running = live.start_engine(
            engine, dtype=dtype, ranks=engine_tp, mode=engine_mode, context_len=context_len, concurrent_sequences=8,
            switches=with_batch_size(switches, 8),
        )  # fmt: skip
        try:
            live.log_ignored_switches(running)
            layout = ParallelLayout(tp=tp, pp=pp, ep=ep)
            scorer = live.start_trainer(trainer, dtype=trainer_dtype or dtype, head_fp32=head_fp32, layout=layout)
            try:
                measurement = calibrate(running, scorer, prompt_tokens, response=response, say=observer.log)
                if output is not None:
                    measurement.write(
                        Path(output), model=os.fspath(source), vocabulary=default_prompts.vocabulary,
                        engine=describe_side(running.info), trainer=describe_side(scorer.info),
                    )  # fmt: skip
            finally:
                scorer.close()
        finally:
            running.close()
    return measurement


def convert_rollouts(
    sources: StrPath | Sequence[StrPath],
    output: StrPath | None = None,
    *,
    source: RolloutFormat | None = None,
    model: str | None = None,
    step: int | None = None,
    logprobs: LogprobKind | None = None,
    temperature: float | None = None,
    trainer_temperature: float | None = None,
    trainer_version: int | None = None,
    clip_low: float | None = None,
    clip_high: float | None = None,
    sampled_by: TokenSampler | None = None,
    observer: Observer = SILENT,
) -> Rollouts:
    """Take over rollouts of a framework, or answers of vLLM and SGLang (``ckptcheck parity convert``).

    No pickle is run and no torch is needed.

    Args:
        sources: files of one framework, or a folder of .jsonl files.
        output: file that the rollouts are written to, .jsonl for JSON lines, .pt for slime's --load-debug-rollout-data (needs
            torch); None: none.
        source: what wrote them; None: detected by their content.
        model: the model's name, kept with the rollouts.
        step: step of the run, from 0.
        logprobs: the distribution of the engine's logprobs.
        temperature: the engine's sampling temperature.
        trainer_temperature: what the trainer divided logits by.
        trainer_version: version of the trainer's weights, as the engine counts them.
        clip_low: the objective clips the policy ratio below 1 - clip_low.
        clip_high: the objective clips the policy ratio above 1 + clip_high.
        sampled_by: who sampled the tokens; None: what the file says, else the engine.
        observer: receives messages.

    """
    sources = _wrap_single(sources)
    _require_ranges(
        step=step, temperature=temperature, trainer_temperature=trainer_temperature, trainer_version=trainer_version,
        clip_low=clip_low, clip_high=clip_high,
    )  # fmt: skip
    import msgspec

    from ckptcheck.parity.rollouts import ScorerInfo, write_rollouts
    from ckptcheck.parity.rollouts.columns import SIDES
    from ckptcheck.parity.rollouts.convert import files
    from ckptcheck.parity.rollouts.convert.slime_file import write_slime_file
    from ckptcheck.text.file_io import require_output_apart
    from ckptcheck.text.formatting import count

    if not sources:
        raise CkptcheckError("there is nothing to convert", hint="name a file of rollouts")
    paths = [Path(path) for path in sources]
    _require_choices(
        source=(source, RolloutFormat), logprobs=(logprobs, LogprobKind), sampled_by=(sampled_by, TokenSampler)
    )
    require_output_apart(_path(output), *files(paths))
    rollouts, kind = _read_rollouts(paths, source)
    metadata = rollouts.metadata
    changes: dict[str, object] = {
        "model": model, "step": step, "logprobs": logprobs, "sampled_by": sampled_by, "clip_low": clip_low,
        "clip_high": clip_high,
    }  # fmt: skip
    if temperature is not None:
        changes["sampling"] = msgspec.structs.replace(metadata.sampling, temperature=temperature)
    version = None if trainer_version is None else str(trainer_version)
    of_trainer = {"temperature": trainer_temperature, "weight_version": version}
    if of_trainer := {name: value for name, value in of_trainer.items() if value is not None}:
        changes["trainer"] = msgspec.structs.replace(metadata.trainer or ScorerInfo(), **of_trainer)
    metadata = msgspec.structs.replace(
        metadata, **{name: value for name, value in changes.items() if value is not None}
    )
    rollouts = rollouts.with_columns(metadata)
    if output is not None:
        if Path(output).suffix == ".pt":
            write_slime_file(rollouts, Path(output))
        else:
            write_rollouts(rollouts, Path(output))
        notes = f", {len(metadata.left_out):,} left out ({metadata.left_out[0].reason})" if metadata.left_out else ""
        sides = [side for side in SIDES if f"{side}_logprobs" in rollouts]
        if "engine" not in sides:
            notes += "; there are no logprobs of the engine in it" if sides else "; there are no logprobs in it"
        numbers = f"{count(rollouts.sequence_count, 'sequence')} of {kind}, {count(len(rollouts.tokens), 'token')}"
        observer.log(f"{numbers}, written to {output}{notes}")
    return rollouts


def _read_rollouts(paths: list[Path], source: str | None) -> tuple[Rollouts, str]:
    """Read the rollouts of a framework, or our own; return them and what wrote them."""
    from ckptcheck.parity.rollouts import read_rollouts
    from ckptcheck.parity.rollouts.convert import convert
    from ckptcheck.parity.rollouts.lines import is_rollout_lines

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


def parity_matrix(
    source: StrPath,
    *,
    lengths: int | Sequence[int] | None = None,
    data: Sequence[str] = ("real", "synthetic"),
    decoding: Sequence[str] = ("greedy", "sampling"),
    batch: int | Sequence[int] = (1, 8),
    pairs: Sequence[str] = ("transformers:vllm",),
    layouts: Sequence[str] = (),
    directions: Sequence[str] = ("engine", "trainer"),
    repeats: int = 2,
    response: int = 16,
    sequences: int = 4,
    temperature: float = 1.0,
    top_p: float = 1.0,
    top_k: int = 0,
    seed: int = 0,
    calibrate: bool = False,
    floor: StrPath | None = None,
    tp: int = 1,
    pp: int = 1,
    ep: int = 1,
    engine_tp: int = 1,
    dtype: Dtype = "float32",
    head_fp32: bool = False,
    switch: Sequence[str] = (),
    engine_mode: EngineMode = "plain",
    engine_python: StrPath | None = None,
    trainer_python: StrPath | None = None,
    max_mult_prob_error: float = 1.05,
    max_floor_multiple: float = 5.0,
    resume: StrPath | None = None,
    markdown: StrPath | None = None,
    timeout: float = 900.0,
    observer: Observer = SILENT,
) -> Report:
    """Measure the gap between trainers and engines over lengths, data, decoding and batches (``ckptcheck parity matrix``).

    Args:
        source: a Hugging Face checkpoint or a Megatron run on this disk.
        lengths: tokens of prompt and response; None: 100, 1,000 and 10,000 where the model has the room.
        data: real: text in the chat template; synthetic: made-up ids.
        decoding: greedy, sampling.
        batch: requests at once.
        pairs: ``trainer:engine``; the other trainer can take the place of the engine.
        layouts: parallel layouts as a further axis, such as ``tp2`` and ``tp2pp2``: all of one for megatron, its TP for engines.
        directions: who samples the tokens: engine, trainer.
        repeats: runs of every cell.
        response: tokens of a response.
        sequences: sequences of a cell, at least.
        temperature: sampling temperature.
        top_p: nucleus sampling; 1: off.
        top_k: sampling from the k most likely tokens; 0: off.
        seed: seed of the first prompt; every further prompt adds 1.
        calibrate: measure the noise floor first, and give gaps as multiples of it.
        floor: a file of `calibrate_floor`, or rollouts with equal weights.
        tp: tensor parallelism of megatron.
        pp: pipeline parallelism of megatron.
        ep: expert parallelism of megatron.
        engine_tp: tensor parallelism of the engines.
        dtype: what both sides compute in.
        head_fp32: the trainers' output head computes in float32.
        switch: settings of the engines, as ``NAME=VALUE``.
        engine_mode: plain keeps weights readable on a CPU; stock leaves the engine as it is.
        engine_python: a Python that has the engine; None: the one that ckptcheck installed.
        trainer_python: a Python that has the trainer; None: the one that ckptcheck installed.
        max_mult_prob_error: limit of a cell's mean exp|Δ|.
        max_floor_multiple: how many times the floor is too much.
        resume: file that keeps the measurements; a later run goes on from it.
        markdown: file for the table in Markdown.
        timeout: seconds for any one call.
        observer: receives messages.

    """
    has_default_lengths = lengths is None
    data = _wrap_single(data)
    decoding = _wrap_single(decoding)
    batch = _wrap_single(batch)
    pairs = _wrap_single(pairs)
    layouts = _wrap_single(layouts)
    directions = _wrap_single(directions)
    switch = _wrap_single(switch)
    _require_ranges(
        repeats=repeats, response=response, sequences=sequences, temperature=temperature, top_p=top_p, top_k=top_k,
        seed=seed, tp=tp, pp=pp, ep=ep, engine_tp=engine_tp, max_mult_prob_error=max_mult_prob_error,
        max_floor_multiple=max_floor_multiple, timeout=timeout,
    )  # fmt: skip
    from ckptcheck.parity.matrix import cells

    length_list = cells.LENGTHS if lengths is None else _wrap_single(lengths)
    for name, numbers in (("lengths", length_list), ("batch", batch)):
        for number in numbers:
            _require_range(name, number, FROM_ONE)
    from ckptcheck.linter.rule_loader import load_rules
    from ckptcheck.parity.live_session import open_live_session
    from ckptcheck.parity.matrix.live_matrix import MatrixSides, measure_matrix
    from ckptcheck.parity.metrics.noise_floor import read_noise_floor
    from ckptcheck.parity.prompts import Data
    from ckptcheck.parity.thresholds import Thresholds
    from ckptcheck.runtime.engines.engine_options import parse_switches
    from ckptcheck.runtime.engines.registry import ENGINES
    from ckptcheck.text.file_io import replace_file, require_output_apart, require_writable
    from ckptcheck.unused_options import Arguments, reject_unused_matrix_options

    given = Arguments(parity_matrix, locals())
    reject_unused_matrix_options(
        given, has_floor=calibrate or floor is not None, pairs=pairs, decoding=decoding, layouts=layouts
    )
    _require_choices(dtype=(dtype, Dtype), engine_mode=(engine_mode, EngineMode))
    if calibrate and floor is not None:
        raise CkptcheckError("--calibrate measures the floor and --floor reads it: give one of the two")
    for file in (_path(markdown), _path(resume)):
        require_output_apart(file, _path(floor), Path(source))
        require_writable(file)
    if markdown is not None and resume is not None and Path(markdown).resolve() == Path(resume).resolve():
        raise UsageError("-o, --markdown and --resume are to be files of their own")
    if parse_switches(list(switch)).logprobs == "processed":
        raise CkptcheckError(
            "the matrix compares the models' own logprobs, not processed ones",
            hint="ckptcheck parity probe --only semantics",
        )
    floor_error = read_noise_floor(Path(floor)).metrics.get("mult_prob_error") if floor is not None else None
    plan = cells.Plan(
        lengths=tuple(sorted({*length_list})),
        data=cast(tuple[Data, ...], _subset(data, cells.DATA, "--data")),
        decoding=cast(tuple[cells.Decoding, ...], _subset(decoding, cells.DECODING, "--decoding")),
        batches=tuple(sorted({*batch})),
        pairs=cells.parse_pairs(list(pairs), list(ENGINES)),
        directions=cast(tuple[cells.Direction, ...], _subset(directions, ("engine", "trainer"), "--directions")),
        repeats=repeats, response=response, sequences=sequences, temperature=temperature, top_p=top_p, top_k=top_k, seed=seed,
        layouts=cells.parse_layouts(list(layouts)),
    )  # fmt: skip
    if plan.temperature == 0 and "sampling" in plan.decoding:
        raise CkptcheckError("--temperature 0 is greedy decoding, and no sampling", hint="--decoding greedy")
    loaded = load_rules()
    sides = MatrixSides(tp, pp, ep, engine_tp, dtype, head_fp32, switch, engine_mode)
    with open_live_session(
        os.fspath(source), timeout=timeout, engine_python=_path(engine_python), trainer_python=_path(trainer_python),
        observer=observer,
    ) as live:  # fmt: skip
        trace = measure_matrix(
            live, plan, sides, resume=_path(resume), calibrate=calibrate, default_lengths=has_default_lengths
        )
    trace = replace(trace, thresholds=Thresholds(mult_prob_error=max_mult_prob_error, floor=max_floor_multiple))
    if floor_error is not None:
        trace = replace(trace, floor=dict.fromkeys(trace.pairs, floor_error))
    report = _report(trace, loaded)
    if markdown is not None:
        replace_file(Path(markdown), trace.markdown().encode())
    return report


def parity_probe(
    source: StrPath,
    *,
    engine: str = "vllm",
    only: Sequence[str] = (),
    without: Sequence[str] = (),
    compilation: bool = False,
    trainer: TrainerName = "transformers",
    prompts: StrPath | None = None,
    length: int = 64,
    response: int = 32,
    long: int = 64,
    room: int = 512,
    temperature: float = 0.7,
    top_p: float = 1.0,
    top_k: int = 0,
    presence_penalty: float = 0.0,
    frequency_penalty: float = 0.0,
    dtype: Dtype = "float32",
    head_fp32: bool = False,
    floor: StrPath | None = None,
    switch: Sequence[str] = (),
    engine_mode: EngineMode = "plain",
    engine_python: StrPath | None = None,
    trainer_python: StrPath | None = None,
    timeout: float = 900.0,
    observer: Observer = SILENT,
) -> Report:
    """Probe an engine for the known ways in which its logprobs drift from a trainer's (``ckptcheck parity probe``).

    Args:
        source: a Hugging Face checkpoint or a Megatron run on this disk.
        engine: the inference engine: vllm or sglang.
        only: run these probes; empty: all but those that compile.
        without: leave these probes out.
        compilation: also run the probes that compile: graphs, inductor, casts.
        trainer: the trainer, where a probe needs one.
        prompts: file of prompts: JSON lines (tokens, messages, text), or plain lines; None: built-in ones.
        length: tokens of a built-in prompt, at most.
        response: tokens of a response.
        long: tokens of the long response that is compared with one prefill.
        room: tokens of the longest sequence.
        temperature: sampling temperature.
        top_p: nucleus sampling; 1: off.
        top_k: sampling from the k most likely tokens; 0: off.
        presence_penalty: taken from the logits of tokens that the response has already; 0: off.
        frequency_penalty: taken as often as the response has a token already; 0: off.
        dtype: what both sides compute in.
        head_fp32: the trainer's output head computes in float32.
        floor: a file of `calibrate_floor`, or rollouts with equal weights: a gap of a few times that is no error (PRB005).
        switch: settings of the engine, as ``NAME=VALUE``.
        engine_mode: plain keeps weights readable on a CPU; stock leaves the engine as it is.
        engine_python: a Python that has the engine; None: the one that ckptcheck installed.
        trainer_python: a Python that has the trainer; None: the one that ckptcheck installed.
        timeout: seconds for any one call.
        observer: receives messages.

    """
    only = _wrap_single(only)
    without = _wrap_single(without)
    switch = _wrap_single(switch)
    _require_ranges(
        temperature=temperature, top_p=top_p, top_k=top_k, presence_penalty=presence_penalty,
        frequency_penalty=frequency_penalty, timeout=timeout,
    )  # fmt: skip
    _require_range("length", length, NumberRange(16, is_whole=True))
    for name, number in (("response", response), ("long", long)):
        _require_range(name, number, NumberRange(4, is_whole=True))
    _require_range("room", room, NumberRange(64, is_whole=True))
    from ckptcheck.linter.rule_loader import load_rules
    from ckptcheck.parity.default_prompts import DefaultPrompts
    from ckptcheck.parity.live_session import open_live_session
    from ckptcheck.parity.metrics.noise_floor import read_noise_floor
    from ckptcheck.parity.probes.environment import EngineSetup, ProbeEnvironment
    from ckptcheck.parity.probes.registry import has_experts, select_probes
    from ckptcheck.parity.probes.runner import run_probes
    from ckptcheck.runtime.engines import registry
    from ckptcheck.runtime.engines.base import Engine
    from ckptcheck.runtime.engines.engine_options import parse_switches
    from ckptcheck.runtime.engines.sampling import Sampling
    from ckptcheck.unused_options import Arguments, reject_unused_probe_options

    given = Arguments(parity_probe, locals())
    reject_unused_probe_options(given, has_prompts=prompts is not None, has_only=bool(only))
    _require_choices(trainer=(trainer, TrainerName), dtype=(dtype, Dtype), engine_mode=(engine_mode, EngineMode))
    # raises CkptcheckError where there is no such engine
    registry.require_engine(engine)
    probes = select_probes(only, without)
    if not only and not compilation:
        probes = {name: make for name, make in probes.items() if name not in COMPILING_PROBES}
    noise_floor = None if floor is None else read_noise_floor(Path(floor))
    loaded = load_rules()
    with open_live_session(
        os.fspath(source), timeout=timeout, engine_python=_path(engine_python), trainer_python=_path(trainer_python),
        observer=observer,
    ) as live:  # fmt: skip
        if not has_experts(live.ckpt):
            probes.pop("routing", None)
        default_prompts = DefaultPrompts(live.ckpt)

        def start_engine(setup: EngineSetup, instead: Engine | None) -> Engine:
            """Start the engine with the set-up of a probe."""
            return live.start_engine(
                engine, dtype=setup.dtype or dtype, mode=engine_mode, context_len=setup.length or room,
                switches=setup.switches, replaces=instead,
            )  # fmt: skip

        def start_trainer(dtype: str, head_fp32: bool, instead: Trainer | None) -> Trainer:
            """Start the trainer."""
            observer.log(f"starting the trainer: {dtype}{', head in float32' if head_fp32 else ''}")
            return live.start_trainer(trainer, dtype=dtype, head_fp32=head_fp32, replaces=instead)

        environment = ProbeEnvironment(
            default_prompts.choose(length, 4, _path(prompts)), default_prompts.vocabulary, live.folder,
            start_trainer=start_trainer, sampling=Sampling(
                temperature, top_p, top_k, presence_penalty=presence_penalty, frequency_penalty=frequency_penalty
            ),
            setup=EngineSetup(parse_switches(list(switch))), stop_tokens=default_prompts.stop_tokens,
            conversation=default_prompts.conversation, length=room, response=response, long=long, timeout=timeout, dtype=dtype,
            head_fp32=head_fp32, say=observer.log,
        )  # fmt: skip
        trace = run_probes(os.fspath(source), environment, start_engine, probes)
        return _report(replace(trace, floor=noise_floor), loaded)


def parity_why(
    file: StrPath,
    source: StrPath | None = None,
    *,
    engine: str = "vllm",
    engine_source: StrPath | None = None,
    trainer: TrainerName = "transformers",
    floor: StrPath | None = None,
    dtype: Dtype | None = None,
    trainer_dtype: Dtype | None = None,
    head_fp32: bool = False,
    tp: int = 1,
    pp: int = 1,
    ep: int = 1,
    switch: Sequence[str] = (),
    engine_mode: EngineMode = "plain",
    engine_tp: int = 1,
    engine_python: StrPath | None = None,
    trainer_python: StrPath | None = None,
    timeout: float = 900.0,
    observer: Observer = SILENT,
) -> Report:
    """Name the layer of a gap's cause, and the experiment that shows it (``ckptcheck parity why``).

    Args:
        file: rollouts: as `record_rollouts`, `score_rollouts` or `convert_rollouts` wrote them.
        source: the trainer's checkpoint; None: nothing runs, and the report explains what the file alone can show.
        engine: the inference engine; ``none``: only the trainer runs.
        engine_source: the checkpoint that the engine loads, where it is another one than `source`.
        trainer: the trainer that scores.
        floor: the noise floor of this model: a file of `calibrate_floor`, or rollouts; None: assumed by the dtype.
        dtype: what the engine computes in; None: as recorded.
        trainer_dtype: what the trainer computes in; None: as recorded.
        head_fp32: the trainer's output head computes in float32.
        tp: tensor parallelism of the trainer.
        pp: pipeline parallelism of the trainer.
        ep: expert parallelism of the trainer.
        switch: settings of the engine, as ``NAME=VALUE``.
        engine_mode: plain keeps weights readable on a CPU; stock leaves the engine as it is.
        engine_tp: tensor parallelism of the engine.
        engine_python: a Python that has the engine; None: the one that ckptcheck installed.
        trainer_python: a Python that has the trainer; None: the one that ckptcheck installed.
        timeout: seconds for any one call.
        observer: receives messages and progress.

    """
    switch = _wrap_single(switch)
    _require_ranges(tp=tp, pp=pp, ep=ep, engine_tp=engine_tp, timeout=timeout)
    from ckptcheck.linter.rule_loader import load_rules
    from ckptcheck.parity.attribution import live_search
    from ckptcheck.parity.attribution.experiments import EXPERIMENTS
    from ckptcheck.parity.attribution.recorded_backend import RecordedBackend
    from ckptcheck.parity.attribution.search import run_search
    from ckptcheck.parity.attribution.trace import Attribution
    from ckptcheck.parity.live_session import open_live_session
    from ckptcheck.parity.rollouts import read_rollouts
    from ckptcheck.unused_options import Arguments, reject_unused_why_options

    given = Arguments(parity_why, locals())
    reject_unused_why_options(given, has_source=source is not None, engine=engine)
    _require_choices(trainer=(trainer, TrainerName), engine_mode=(engine_mode, EngineMode))
    _require_choices(dtype=(dtype, Dtype), trainer_dtype=(trainer_dtype, Dtype))
    rollouts = read_rollouts(Path(file))
    if rollouts.defects:
        raise CkptcheckError(f"{file} is malformed: {rollouts.defects[0].text}", hint=f"ckptcheck parity judge {file}")
    if "engine_logprobs" not in rollouts:
        raise CkptcheckError(f"{file} has no logprobs of an engine")
    measured_floor = live_search.read_floor(Path(floor)) if floor is not None else None
    loaded = load_rules()
    if source is None:
        if "trainer_logprobs" not in rollouts:
            raise CkptcheckError(
                f"{file} has no logprobs of a trainer", hint=f"ckptcheck parity why {file} SOURCE scores it first"
            )
        result = run_search(
            RecordedBackend(rollouts), EXPERIMENTS, measured_floor or live_search.assume_floor(rollouts)
        )
    else:
        with open_live_session(
            os.fspath(source), timeout=timeout, engine_python=_path(engine_python),
            trainer_python=_path(trainer_python), observer=observer,
        ) as live:  # fmt: skip
            rollouts, result = live_search.search_live(
                live, rollouts, measured_floor,
                live_search.SearchEngine(engine, _path(engine_source), dtype, engine_mode, engine_tp, switch),
                live_search.SearchTrainer(trainer, trainer_dtype, head_fp32, tp, pp, ep),
            )  # fmt: skip
    metadata = rollouts.metadata
    sides = (
        live_search.describe_side(metadata.engine) or "engine",
        live_search.describe_side(metadata.trainer) or "trainer",
    )
    return _report(Attribution(os.fspath(file), result, sides, has_measured_floor=measured_floor is not None), loaded)


def localize(
    source: StrPath | None = None,
    *,
    dumps: tuple[StrPath, StrPath] | None = None,
    engine: str = "vllm",
    engine_source: StrPath | None = None,
    trainer: TrainerName = "transformers",
    tp: int = 1,
    pp: int = 1,
    ep: int = 1,
    engine_tp: int = 1,
    engine_mode: EngineMode = "plain",
    dtype: Dtype = "float32",
    tokens: Sequence[int] | None = None,
    limit: float | None = None,
    plots: StrPath | None = None,
    engine_python: StrPath | None = None,
    trainer_python: StrPath | None = None,
    timeout: float = 900.0,
    observer: Observer = SILENT,
) -> Report:
    """Send one prompt through trainer and engine and name the first module whose output differs (``ckptcheck parity localize``).

    Args:
        source: a Hugging Face checkpoint on this disk.
        dumps: compare dumps made elsewhere (msProbe's, SGLang's) instead of running anything.
        engine: the inference engine: vllm or sglang; or the other trainer: transformers or megatron.
        engine_source: the checkpoint that the engine loads, where it is another one than `source`.
        trainer: the reference.
        tp: tensor parallelism of the trainer.
        pp: pipeline parallelism of the trainer.
        ep: expert parallelism of the trainer.
        engine_tp: tensor parallelism of the engine.
        engine_mode: plain keeps weights readable on a CPU; stock leaves the engine as it is.
        dtype: what both sides compute in.
        tokens: the prompt as ids; None: 48 made-up ones, always the same.
        limit: relative difference that still counts as equal; None: by the dtype's rounding.
        plots: folder for a plot of the difference by layer (needs matplotlib).
        engine_python: a Python that has the engine; None: the one that ckptcheck installed.
        trainer_python: a Python that has the trainer; None: the one that ckptcheck installed.
        timeout: seconds for each side.
        observer: receives messages.

    """
    _require_ranges(tp=tp, pp=pp, ep=ep, engine_tp=engine_tp, limit=limit, timeout=timeout)
    if tokens is not None:
        tokens = _wrap_single(tokens)
        if any(not isinstance(token, Integral) for token in tokens):
            raise CkptcheckError(
                f"--tokens takes ids, not {', '.join(map(str, tokens))}", hint="as in tokens=[1, 2, 3]"
            )
    if dumps is not None and (isinstance(dumps, (str, os.PathLike)) or len(dumps) != 2):
        raise CkptcheckError("--dumps takes two dumps", hint="one of each side, A and B")
    from ckptcheck.unused_options import Arguments, reject_unused_localize_options

    given = Arguments(localize, locals())
    reject_unused_localize_options(given, has_dumps=dumps is not None, engine=engine)
    _require_choices(trainer=(trainer, TrainerName), dtype=(dtype, Dtype), engine_mode=(engine_mode, EngineMode))
    if source is None and dumps is None:
        raise CkptcheckError("there is nothing to compare", hint="name a checkpoint, or two dumps with --dumps A B")
    if dumps is not None:
        from ckptcheck.parity.localize.dumps import compare_dumps

        localization = compare_dumps(Path(dumps[0]), Path(dumps[1]), _path(source), dtype, limit)
    else:
        from ckptcheck.parity.localize.live_checkpoint import LocalizeSides, localize_checkpoint

        assert source is not None
        sides = LocalizeSides(
            engine, _path(engine_source), trainer, tp, pp, ep, engine_tp, engine_mode, dtype, _path(engine_python),
            _path(trainer_python), timeout,
        )  # fmt: skip
        localization = localize_checkpoint(Path(source), sides, tokens=tokens, limit=limit, observer=observer)
    report = _report(localization)
    if plots is not None:
        from ckptcheck.parity.localize.plot import draw

        observer.log(f"drew {draw(localization, Path(plots))}")
    return report


# --- helpers ---


def critic(
    source: StrPath,
    *,
    layouts: str | Sequence[str] = (),
    length: int = 16,
    trainer_python: StrPath | None = None,
    timeout: float = 900.0,
    observer: Observer = SILENT,
) -> Report:
    """Compare a critic in transformers with the same critic in megatron-core: values, loss, gradients (``ckptcheck critic``).

    Args:
        source: a critic as a Hugging Face checkpoint on this disk, or a language model, to which a head is added.
        layouts: Megatron's parallel layouts, such as ``tp2`` and ``pp2vpp2``; (): tp1, tp2, pp2 and pp2vpp2 where they fit.
        length: tokens of a sequence.
        trainer_python: a Python that has megatron-core and transformers; None: the one that ckptcheck installed.
        timeout: seconds for any one call.
        observer: receives messages.

    """
    layouts = _wrap_single(layouts)
    _require_ranges(length=length, timeout=timeout)
    from ckptcheck.checkpoint.checkpoint import Checkpoint
    from ckptcheck.checkpoint.open import open_target
    from ckptcheck.parity.critic import compare_critic
    from ckptcheck.runtime.trainers.critic_layout import CriticLayout

    chosen = [CriticLayout.parse(text) for text in dict.fromkeys(layouts)] or None
    name = os.fspath(source)
    checkpoint = open_target(name)
    if not isinstance(checkpoint, Checkpoint):
        raise CkptcheckError(
            f"{name} is a Megatron run, and both frameworks start from a Hugging Face checkpoint",
            hint="convert it, and compare the two with ckptcheck diff --critic",
        )
    return _report(
        compare_critic(
            checkpoint, chosen, length=length, python=_path(trainer_python), timeout=timeout, observer=observer
        )
    )


def _report(
    evidence: Any,
    loaded: Sequence[Rule] | None = None,
    *,
    selected: Sequence[Rule] | None = None,
    ignored: Mapping[str, str] | None = None,
) -> Report:
    """Run rules over evidence. loaded: all rules; None: the built-in ones. selected: those that run; None: all loaded ones."""
    from ckptcheck.linter.rule_loader import load_rules
    from ckptcheck.linter.runner import run_rules

    rules = load_rules() if loaded is None else loaded
    report = run_rules(evidence, rules if selected is None else selected, ignored=ignored)
    return replace(report, rules=tuple(rules))


def _path(path: StrPath | None) -> Path | None:
    return None if path is None else Path(path)


def _require_choices(**arguments: tuple[str | None, Any]) -> None:
    """Raise CkptcheckError for an argument that is none of its choices. name=(value, the Literal type)."""
    for name, (value, choices) in arguments.items():
        if value is not None:
            _require_choice(f"--{name.replace('_', '-')}", value, choices)


def _require_choice(option: str, value: str, choices: Any) -> None:
    if value not in get_args(choices):
        raise CkptcheckError(f"{option} is one of {', '.join(get_args(choices))}, not {value}")


def _require_ranges(**arguments: object) -> None:
    """Raise CkptcheckError for an argument that is none of the numbers of its range in `RANGES`. None is no number and passes."""
    for name, value in arguments.items():
        _require_range(name, value, RANGES[name])


def _require_range(name: str, value: object, allowed: NumberRange) -> None:
    """Raise CkptcheckError for a value that is no finite number of this range. None passes."""
    if value is None:
        return
    is_number = isinstance(value, Integral if allowed.is_whole else Real)
    if not (is_number and isfinite(cast(float, value)) and allowed.least <= cast(float, value) <= allowed.most):
        kind = "whole numbers" if allowed.is_whole else "finite numbers"
        most = "on" if allowed.most == inf else f"to {allowed.most:g}"
        bounds = f" from {allowed.least:g} {most}" if isfinite(allowed.least) else ""
        raise CkptcheckError(f"--{name.replace('_', '-')} takes {kind}{bounds}, not {value!r}")


def _normalize_gpus(option: str, value: str | None) -> str | None:
    """Return the GPUs without spaces. Raises CkptcheckError that names the option."""
    from ckptcheck.runtime.process.gpus import normalize_gpus

    try:
        return None if value is None else normalize_gpus(str(value))
    except CkptcheckError as error:
        raise CkptcheckError(f"{option}: {error.message}") from None


@overload
def _wrap_single(values: str | Sequence[str]) -> tuple[str, ...]: ...
@overload
def _wrap_single(values: int | Sequence[int]) -> tuple[int, ...]: ...
@overload
def _wrap_single(values: StrPath | Sequence[StrPath]) -> tuple[StrPath, ...]: ...
def _wrap_single(values: Any) -> tuple[Any, ...]:
    """Return the values as a tuple; a single string, path or number gives a tuple of one, and no letters."""
    return (values,) if isinstance(values, (str, os.PathLike, Real)) else tuple(values)


def _subset(words: Sequence[str], known: Sequence[str], option: str) -> tuple[str, ...]:
    """Return the words without repetitions. Raises CkptcheckError for none, and for one that is not known."""
    chosen = tuple(dict.fromkeys(words))
    if not chosen or set(chosen) - set(known):
        raise CkptcheckError(f"{option} is some of {', '.join(known)}, not {', '.join(words) or 'nothing'}")
    return chosen
