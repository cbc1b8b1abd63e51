"""``ckptcheck scan``: checks checkpoints, and shows what repairs would change."""

import os
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from msgspec import structs

from ckptcheck.errors import CkptcheckError, UsageError
from ckptcheck.text.addresses import is_remote_address
from ckptcheck.text.observer import SILENT, Observer
from ckptcheck.verbs.options import (
    FROM_ZERO,
    RULES,
    TARGET_FORMS,
    Argument,
    FollowLinks,
    Ignore,
    Jobs,
    Option,
    Paths,
    RuleFolders,
    Select,
    Setting,
    StrPath,
    Words,
)
from ckptcheck.verbs.parameter import Given, several, to_path
from ckptcheck.verbs.verb import verb

if TYPE_CHECKING:
    from ckptcheck.checkpoint.scan_options import ScanOptions
    from ckptcheck.linter.report import FailOn, Reports
    from ckptcheck.linter.rule import Rule
    from ckptcheck.runners.runner import Runner
    from ckptcheck.verbs.scanning import ScanRequest

REPAIRS = "Repairs"
KNOWN = "Known findings and settings"
VALUE_OPTIONS = ("no_mmap", "near_zero_threshold", "identical_threshold")
"""How values are read and judged."""
ASKED = {
    "dry_load": (
        "--dry-load asks a loader about a whole Hugging Face model, and there is none",
        ("DRY001",),
    ),
    "base": (
        "--base names the base model of an adapter, and there is no adapter; ckptcheck diff compares two models",
        ("ADP005", "ADP009"),
    ),
}
"""Option → what is said where it meets no target, and the rules that it asks for: they run whatever --select names."""
NOTHING_QUANTIZED = "--consumers tabulates how a quantized checkpoint is read, and nothing here is quantized"


def reject_unused(given: Given) -> None:
    """Reject options that do not go with the kind of the targets."""
    from ckptcheck.checkpoint.targets import normalize_target

    targets = [normalize_target(os.fspath(target)) for target in given["targets"]]
    is_on_hub = all(target.startswith("hf://") for target in targets)
    is_remote = all(map(is_remote_address, targets))
    if is_on_hub:
        given.reject(["recursive", "follow_links"], "for targets on the Hub")
    elif is_remote:
        given.reject(["follow_links"], "for targets in an object store: it has no links")
    if given["headers_only"] or given["values"] or given["runner"] is not None:
        return
    if is_remote:
        where = f"for targets {'on the Hub' if is_on_hub else 'in an object store'}: their values are not read"
        given.reject(VALUE_OPTIONS, where, "give --values too")


@verb(reject_unused)
def scan(
    targets: Annotated[Paths, Argument(TARGET_FORMS, metavar="TARGET...")],
    *,
    recursive: Annotated[bool, Option("Check every checkpoint in a folder and below it: all steps of a run.")] = False,
    headers_only: Annotated[
        bool,
        Option("Read headers and configs only, no tensor values.", without=VALUE_OPTIONS, because="no values are read"),
    ] = False,
    values: Annotated[bool, Option("Read the values of a target on the Hub or in an object store too.")] = False,
    base: Annotated[
        StrPath | None,
        Option(
            "The base model of an adapter: compare their modules and shapes.",
            metavar="BASE",
            shown="a folder beside the adapter, where its config names one",
        ),
    ] = None,
    consumers: Annotated[
        Words,
        Option(
            "Tabulate how these consumers read a quantized checkpoint: vllm, sglang, transformers, compressed-tensors, slime.",
            metavar="NAME,…",
            shown="vllm,sglang, without a table",
            panel="What is printed",
            has_commas=True,
        ),
    ] = (),
    dry_load: Annotated[
        Words,
        Option(
            "Ask the loader of transformers, vllm or sglang which of its parameters the stored tensors fill. No values are read. "
            "=PYTHON names a Python that has it.",
            metavar="NAME[=PYTHON]",
            has_commas=True,
        ),
    ] = (),
    select: Select = (),
    ignore: Ignore = (),
    rules: RuleFolders = (),
    config: Annotated[
        StrPath | None,
        Option(
            "File with settings; the rules that it names run.",
            metavar="FILE",
            shown="the nearest ckptcheck.toml or pyproject.toml, not with the target",
            panel=RULES,
        ),
    ] = None,
    baseline: Annotated[
        StrPath | None, Option("Leave out the findings that this file lists.", metavar="FILE", panel=KNOWN)
    ] = None,
    write_baseline: Annotated[
        StrPath | None,
        Option(
            "Write the findings to this file; --baseline then leaves them out.",
            metavar="FILE",
            panel=KNOWN,
            without=("baseline",),
            because="which lists all findings anew",
            is_output=True,
        ),
    ] = None,
    stats: Annotated[
        StrPath | None,
        Option(
            "Write a JSON record per tensor: absmax, NaN, Inf, zero, constant; "
            "for embeddings, heads and routers also mean_abs, max_abs and std of each row.",
            metavar="FILE",
            panel=KNOWN,
            is_output=True,
        ),
    ] = None,
    fix: Annotated[
        bool, Option("Make the safe repairs, then report what remains. Old files are kept.", panel=REPAIRS)
    ] = False,
    follow_links: FollowLinks = False,
    verify_blobs: Annotated[
        bool, Setting("Compare the hash of each file in a cached snapshot with the name of its blob.")
    ] = False,
    jobs: Jobs = None,
    no_mmap: Annotated[
        bool, Setting("Read files instead of mapping them into memory (for network file systems).")
    ] = False,
    near_zero_threshold: Annotated[
        float, Setting("Rows of embeddings below this magnitude count as near zero.", within=FROM_ZERO)
    ] = 1e-10,
    identical_threshold: Annotated[
        float, Setting("Rows whose standard deviation is below this count as constant.", within=FROM_ZERO)
    ] = 1e-8,
    runner: "Runner | None" = None,
    pictures: bool = False,
    observer: Observer = SILENT,
) -> "Reports":
    """Check checkpoints: what is missing, broken, or not what its author meant.

    Exit codes: 0 clean, 1 findings at or above --fail-on, 2 could not check.

    Returns a report for each target. A target that cannot be read gets a report with an error; it raises CkptcheckError where it is
    the only one. Several files of one model are one target: the folder that holds them.
    """
    if headers_only and stats:
        raise UsageError("--headers-only leaves the values out that --stats would write; choose one")
    if headers_only and values:
        raise UsageError("--headers-only leaves the values out and --values reads them; choose one")
    from ckptcheck.checkpoint.scan_options import ScanOptions
    from ckptcheck.linter import baseline as baselines
    from ckptcheck.linter.report import Reports, Section
    from ckptcheck.linter.runner import note_unanswered
    from ckptcheck.runners.parts import PartWriter
    from ckptcheck.text.file_io import require_distinct_outputs
    from ckptcheck.text.model_files import refuse_model_file
    from ckptcheck.verbs.reports import check_runner
    from ckptcheck.verbs.scanning import run_passes, scan_targets

    runner = check_runner(runner)
    outputs = {"--stats": to_path(stats), "--write-baseline": to_path(write_baseline)}
    require_distinct_outputs(outputs)
    for written in outputs.values():
        refuse_model_file(written)
    names = _resolve(targets, recursive=recursive, follow_links=follow_links, observer=observer)
    options = ScanOptions(
        verify_blobs, near_zero_threshold, identical_threshold, None if base is None else os.fspath(base),
        _check_consumers(several(consumers)), follow_links=follow_links,
    )  # fmt: skip
    request, loaded_rules, fail_on = _build_request(names, config, rules, select, ignore, options, observer)
    if options.base is not None:
        request = _ask_for("base", request, loaded_rules)
    if dry_load:
        request = _ask_for("dry_load", request, loaded_rules)
    # what else would a runner run
    values = values or (runner is not None and not headers_only and any(map(is_remote_address, names)))
    request = structs.replace(
        request, jobs=jobs, fix=fix, headers_only=headers_only, remote_values=values, use_mmap=not no_mmap,
        stats=to_path(stats), runner=runner, pictures=pictures,
    )  # fmt: skip
    if isinstance(runner, PartWriter):
        run_passes(names, request)
        return Reports(())
    known = baselines.read_baseline(Path(baseline)) if baseline else frozenset()
    with ExitStack() as stack:
        if dry_load:
            from ckptcheck.live.runtime.dry_loading import create_dry_loaders

            loaders = create_dry_loaders(several(dry_load), stack, len(names))
            request = structs.replace(request, options=structs.replace(request.options, dry_loaders=loaders))
        reports = scan_targets(names, request)
    reports = note_unanswered(reports, request.asked)
    if options.consumers and not any(report.consumers or report.error for report in reports):
        reports = [structs.replace(report, error=NOTHING_QUANTIZED, next_step="") for report in reports]
    elif options.consumers:
        unasked = (Section("Consumers", lines=("nothing in it is quantized: there was nothing to ask",)),)
        reports = [
            report
            if report.consumers or report.error
            else structs.replace(report, sections=(*report.sections, *unasked))
            for report in reports
        ]
    if write_baseline:
        known = baselines.write_baseline(Path(write_baseline), reports)
        observer.log(f"{len(known)} finding{'' if len(known) == 1 else 's'} written to {write_baseline}")
    if known:
        reports = [baselines.drop_known(report, known) for report in reports]
    return Reports(tuple(structs.replace(report, rules=tuple(loaded_rules), fail_on=fail_on) for report in reports))


def preview_repairs(
    targets: Paths,
    *,
    recursive: bool = False,
    follow_links: bool = False,
    consumers: Words = (),
    rules: Paths = (),
    jobs: int | None = None,
    config: StrPath | None = None,
    observer: Observer = SILENT,
) -> str:
    """Return as unified diffs what ``scan(..., fix=True)`` would change, "" where it would change nothing."""
    from ckptcheck.checkpoint.scan_options import ScanOptions
    from ckptcheck.verbs.scanning import preview_repairs

    names = _resolve(targets, recursive=recursive, follow_links=follow_links, observer=observer)
    options = ScanOptions(consumers=_check_consumers(several(consumers)), follow_links=follow_links)
    request, _, _ = _build_request(names, config, rules, (), (), options, observer)
    return preview_repairs(names, structs.replace(request, jobs=jobs))


def _resolve(targets: Paths, *, recursive: bool, follow_links: bool, observer: Observer) -> list[str]:
    """Return the checkpoints that the targets name. Raises CkptcheckError for none."""
    from ckptcheck.checkpoint.targets import normalize_target, resolve_targets

    names = [normalize_target(os.fspath(target)) for target in several(targets)]
    if not names:
        raise CkptcheckError("there is nothing to scan", hint="name a checkpoint")
    return resolve_targets(names, recursive=recursive, follow_links=follow_links, log=observer.log)


def _build_request(
    targets: Sequence[str],
    config: StrPath | None,
    rule_folders: Paths,
    select: Words,
    ignore: Words,
    options: "ScanOptions",
    observer: Observer,
) -> "tuple[ScanRequest, list[Rule], FailOn]":
    """Return the request, all loaded rules, and the severity that the settings fail on."""
    from ckptcheck.linter import rule_loader
    from ckptcheck.linter.selection import find_asked, match_rules, select_rules
    from ckptcheck.verbs.scanning import ScanRequest
    from ckptcheck.verbs.settings import read_project_settings, refuse_code

    project = read_project_settings(targets, config, observer)
    if project.rule_folders and config is None:
        raise refuse_code(project.file, "rules names folders of rules, which are code")
    loaded = rule_loader.load_rules([*project.rule_folders, *map(Path, several(rule_folders))])
    ignored = project.ignored_codes(loaded)
    for pattern in several(ignore):
        ignored |= {rule.code: "ignored on the command line" for rule in match_rules(loaded, pattern)}
    request = ScanRequest(
        rules=select_rules(loaded, list(several(select)) or project.select),
        ignored=ignored,
        severities=project.severity_codes(loaded),
        asked=find_asked(loaded, several(select), ignored),
        options=options,
        observer=observer,
    )
    return request, list(loaded), project.fail_on


def _ask_for(option: str, request: "ScanRequest", loaded: "Sequence[Rule]") -> "ScanRequest":
    """Return the request with the rules of an option among those that run."""
    sentence, asked = ASKED[option]
    codes = {rule.code for rule in request.rules} | {*asked}
    return structs.replace(
        request,
        rules=[rule for rule in loaded if rule.code in codes],
        asked={**request.asked, sentence: asked},
    )


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
                hint=f"ckptcheck knows {', '.join(CONSUMERS)}",
            )
    return tuple(dict.fromkeys(names))
