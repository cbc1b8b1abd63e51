"""Scans checkpoints, and shows what repairs would change."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ckptcheck.api.arguments import StrPath, check_runner, require_ranges, to_path, wrap_single
from ckptcheck.errors import CkptcheckError, UsageError
from ckptcheck.text.observer import SILENT, Observer

if TYPE_CHECKING:
    from ckptcheck.checkpoint.scan_options import ScanOptions
    from ckptcheck.linter.report import FailOn, Report, Reports
    from ckptcheck.linter.rule import Rule
    from ckptcheck.runners.runner import Runner
    from ckptcheck.scanning import ScanRequest


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
    dry_load: str | Sequence[str] = (),
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
    pictures: bool = False,
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
        dry_load: names of consumers whose own loader matches every stored tensor, without values: transformers, vllm, sglang;
            ``NAME=PYTHON`` for another Python than this one (transformers) or an installed engine's.
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
        pictures: draw what was found, for a notebook.
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
        stats=stats, consumers=consumers, dry_load=dry_load, no_mmap=no_mmap, device=device, select=select, ignore=ignore,
        rules=rules, jobs=jobs, runner=runner, fix=fix, baseline=baseline, write_baseline=write_baseline, config=config,
        pictures=pictures, observer=observer,
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
    dry_load: str | Sequence[str] = (),
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
    pictures: bool = False,
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

    names, request, loaded_rules, fail_on = prepare_scan(
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
        dry_load=dry_load,
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
        pictures=pictures,
        observer=observer,
    )
    known = baselines.read_baseline(Path(baseline)) if baseline else frozenset()
    with ExitStack() as stack:
        if wanted := wrap_single(dry_load):
            from ckptcheck.live.runtime.dry_loading import create_dry_loaders

            loaders = create_dry_loaders(wanted, stack, len(names))
            request = replace(request, options=replace(request.options, dry_loaders=loaders))
        reports = scan_targets(names, request)
    if write_baseline:
        known = baselines.write_baseline(Path(write_baseline), reports)
        observer.log(f"{len(known)} finding{'' if len(known) == 1 else 's'} written to {write_baseline}")
    if known:
        reports = [baselines.drop_known(report, known) for report in reports]
    return Reports(tuple(replace(report, rules=tuple(loaded_rules), fail_on=fail_on) for report in reports))


def prepare_scan(
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
    dry_load: str | Sequence[str],
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
    pictures: bool,
    observer: Observer,
) -> tuple[list[str], ScanRequest, list[Rule], FailOn]:
    """Return the targets, the request, all loaded rules, and the severity that the settings fail on; see `scan_all`."""
    arguments = dict(locals())
    targets = wrap_single(targets)
    consumers = wrap_single(consumers)
    select = wrap_single(select)
    ignore = wrap_single(ignore)
    rules = wrap_single(rules)
    require_ranges(near_zero_threshold=near_zero_threshold, identical_threshold=identical_threshold, jobs=jobs)
    from ckptcheck.checkpoint.scan_options import ScanOptions
    from ckptcheck.checkpoint.targets import normalize_target, resolve_targets
    from ckptcheck.text.addresses import is_remote_address
    from ckptcheck.text.file_io import require_distinct_outputs
    from ckptcheck.text.model_files import refuse_model_file
    from ckptcheck.unused_options import Arguments, reject_unused_scan_options

    runner = check_runner(runner, device)
    names = [normalize_target(os.fspath(target)) for target in targets]
    if runner is not None and not headers_only and any(map(is_remote_address, names)):
        values = arguments["values"] = True  # what else would it run
    given = Arguments(scan_all, arguments)
    reject_unused_scan_options(
        given, names, headers_only=headers_only, values=values, write_baseline=write_baseline is not None
    )
    if not targets:
        raise CkptcheckError("there is nothing to scan", hint="name a checkpoint")
    if headers_only and stats:
        raise UsageError("--headers-only leaves the values out that --stats would write; choose one")
    if headers_only and values:
        raise UsageError("--headers-only leaves the values out and --values reads them; choose one")
    require_distinct_outputs({"--stats": to_path(stats), "--write-baseline": to_path(write_baseline)})
    for written in (stats, write_baseline):
        refuse_model_file(to_path(written))
    names = resolve_targets(names, recursive=recursive, follow_links=follow_links, log=observer.log)
    options = ScanOptions(
        verify_blobs, near_zero_threshold, identical_threshold, None if base is None else os.fspath(base),
        _check_consumers(consumers), follow_links=follow_links,
    )  # fmt: skip
    request, loaded_rules, fail_on = _scan_request(names, config, rules, select, ignore, options, observer)
    request = replace(
        request, jobs=jobs, fix=fix, headers_only=headers_only, remote_values=values, use_mmap=not no_mmap, device=device,
        stats=to_path(stats), runner=runner, pictures=pictures, observer=observer,
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
    targets = wrap_single(targets)
    consumers = wrap_single(consumers)
    rules = wrap_single(rules)
    require_ranges(jobs=jobs)
    from ckptcheck.checkpoint.scan_options import ScanOptions
    from ckptcheck.checkpoint.targets import resolve_targets
    from ckptcheck.scanning import preview_repairs

    names = [os.fspath(target) for target in targets]
    if not targets:
        raise CkptcheckError("there is nothing to scan", hint="name a checkpoint")
    names = resolve_targets(names, recursive=recursive, follow_links=follow_links, log=observer.log)
    options = ScanOptions(consumers=_check_consumers(consumers), follow_links=follow_links)
    request, _, _ = _scan_request(names, config, rules, (), (), options, observer)
    return preview_repairs(names, replace(request, jobs=jobs, observer=observer))


def _scan_request(
    targets: Sequence[str],
    config: StrPath | None,
    rule_folders: Sequence[StrPath],
    select: Sequence[str],
    ignore: Sequence[str],
    options: ScanOptions,
    observer: Observer,
) -> tuple[ScanRequest, list[Rule], FailOn]:
    """Return the request, all loaded rules, and the severity that the settings fail on."""
    from ckptcheck.linter import rule_loader, settings
    from ckptcheck.linter.selection import match_rules, select_rules
    from ckptcheck.scanning import ScanRequest

    project = settings.load_settings(Path(config)) if config else settings.find_settings(Path.cwd(), targets)
    for file in project.passed_over:
        observer.log(f"{file} was not read, since it may have come with the weights beside it; --config {file} uses it")
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
