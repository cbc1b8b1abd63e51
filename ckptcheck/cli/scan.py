"""``ckptcheck scan``: checks checkpoints."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from ckptcheck import api
from ckptcheck.cli.join import write_part
from ckptcheck.cli.options import (
    TARGET_FORMS,
    FollowLinks,
    Format,
    Ignore,
    On,
    Part,
    ReportOrParts,
    Select,
    Verbose,
    WrittenOptions,
    find_runner,
    finite,
    require_file,
    split_list,
)
from ckptcheck.errors import UsageError
from ckptcheck.linter.report import FailOn
from ckptcheck.unused_options import VALUE_OPTIONS, reject_unused_scan_options

REPORT_OPTIONS = (
    "headers_only", "values", "verify_blobs", "base", "stats", "dry_load", *VALUE_OPTIONS, "select", "ignore", "format", "output",
    "fail_on", "baseline", "write_baseline", "verbose", "on",
)  # fmt: skip
"""Options about what is checked and reported. --diff judges nothing."""


def scan(
    ctx: typer.Context,
    targets: Annotated[list[str], typer.Argument(metavar="TARGET", help=TARGET_FORMS)],
    recursive: Annotated[
        bool, typer.Option("--recursive", help="Check every checkpoint in a folder and below it: all steps of a run.")
    ] = False,
    follow_links: FollowLinks = False,
    headers_only: Annotated[
        bool, typer.Option("--headers-only", help="Read headers and configs only, no tensor values.")
    ] = False,
    values: Annotated[
        bool, typer.Option("--values", help="Read the values of a target on the Hub or in an object store too.")
    ] = False,
    verify_blobs: Annotated[
        bool,
        typer.Option("--verify-blobs", help="Hash the files of a cached snapshot against the names of their blobs."),
    ] = False,
    near_zero_threshold: Annotated[
        float, typer.Option(callback=finite, help="Rows of embeddings below this magnitude count as near zero.")
    ] = 1e-10,
    identical_threshold: Annotated[
        float, typer.Option(callback=finite, help="Rows whose standard deviation is below this count as constant.")
    ] = 1e-8,
    base: Annotated[
        str | None,
        typer.Option(
            metavar="BASE",
            help="The base model of an adapter: compare their modules and shapes.",
            show_default="a folder beside the adapter, where its config names one",
        ),
    ] = None,
    stats: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write a JSON record per tensor: absmax, NaN, Inf, zero, constant; "
            "for embeddings, heads and routers also mean_abs, max_abs and std of each row.",
        ),
    ] = None,
    consumers: Annotated[
        list[str],
        typer.Option(
            help="Tabulate how these consumers read a quantized checkpoint: vllm, sglang, transformers, compressed-tensors, slime.",
            show_default="vllm,sglang, without a table",
        ),
    ] = [],  # noqa: B006
    dry_load: Annotated[
        list[str],
        typer.Option(
            metavar="NAME[=PYTHON]",
            help="Have the loader of transformers, vllm or sglang match every stored tensor with its parameters, without values; "
            "PYTHON has it, where ckptcheck does not find it.",
        ),
    ] = [],  # noqa: B006
    no_mmap: Annotated[
        bool, typer.Option("--no-mmap", help="Read files instead of mapping them (network file systems).")
    ] = False,
    device: Annotated[
        str, typer.Option(help="Scan the values on this device, as torch names it: cuda, cuda:1.")
    ] = "cpu",
    select: Select = [],  # noqa: B006
    ignore: Ignore = [],  # noqa: B006
    rules: Annotated[
        list[Path], typer.Option(metavar="DIR", help="Load further rules from this folder. Their code runs.")
    ] = [],  # noqa: B006
    format: Format = "text",
    output: ReportOrParts = None,
    fail_on: Annotated[
        FailOn | None,
        typer.Option(help="Exit with 1 on findings of this severity or a worse one.", show_default="error"),
    ] = None,
    jobs: Annotated[int | None, typer.Option(min=1, help="Files read at a time.", show_default="cores")] = None,
    part: Part = None,
    on: On = None,
    fix: Annotated[
        bool, typer.Option("--fix", help="Make the safe repairs, then report what remains. Old files are kept.")
    ] = False,
    diff: Annotated[bool, typer.Option("--diff", help="Print what --fix would change, and nothing else.")] = False,
    baseline: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Leave out the findings that this file lists.")
    ] = None,
    write_baseline: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the findings to this file; --baseline then leaves them out."),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="File with settings.", show_default="the nearest ckptcheck.toml or pyproject.toml"
        ),
    ] = None,
    verbose: Verbose = False,
) -> None:
    """Check checkpoints: what is missing, broken, or not what its author meant.

    Exit codes: 0 clean, 1 findings at or above --fail-on, 2 could not check.
    """
    from ckptcheck.checkpoint.targets import normalize_target
    from ckptcheck.cli import output as out
    from ckptcheck.reporters.printable import printable_lines
    from ckptcheck.reporters.runner_commands import break_commands
    from ckptcheck.text.file_io import require_distinct_outputs

    written = WrittenOptions(ctx)
    asked = split_list("--consumers", consumers)
    chosen, left_out = split_list("--select", select), split_list("--ignore", ignore)
    if part is not None:
        write_part(
            written, "scan", targets, part, output, jobs,
            ("headers_only", "fix", "diff", "dry_load", "format", "fail_on", "verbose"),
            recursive=recursive, follow_links=follow_links, values=values, verify_blobs=verify_blobs,
            near_zero_threshold=near_zero_threshold, identical_threshold=identical_threshold, base=base, stats=stats,
            consumers=asked, no_mmap=no_mmap, device=device, select=chosen,
            ignore=left_out, rules=rules, baseline=baseline, write_baseline=write_baseline, config=config,
        )  # fmt: skip
    file = require_file(output)
    if fix and diff:
        raise UsageError("--fix makes the repairs and --diff only shows them; choose one")
    require_distinct_outputs({"--stats": stats, "--write-baseline": write_baseline, "-o": file})
    if diff:
        written.reject(REPORT_OPTIONS, "with --diff, which only shows what --fix would change")
    reject_unused_scan_options(
        written, [normalize_target(target) for target in targets], headers_only=headers_only,
        values=values or on is not None,
        write_baseline=write_baseline is not None,
    )  # fmt: skip
    if diff:
        diffs = api.preview_repairs(
            targets, recursive=recursive, follow_links=follow_links, consumers=asked, rules=rules, jobs=jobs,
            config=config, observer=out.TERMINAL,
        )  # fmt: skip
        shown = printable_lines(diffs)
        sys.stdout.write(break_commands(shown) if not sys.stdout.isatty() else shown)
        raise typer.Exit(1 if diffs else 0)
    reports = api.scan_all(
        targets, recursive=recursive, follow_links=follow_links, headers_only=headers_only, values=values,
        verify_blobs=verify_blobs, near_zero_threshold=near_zero_threshold, identical_threshold=identical_threshold, base=base,
        stats=stats, consumers=asked, dry_load=split_list("--dry-load", dry_load), no_mmap=no_mmap, device=device,
        select=chosen, ignore=left_out, rules=rules, jobs=jobs, runner=find_runner(on), fix=fix,
        baseline=baseline, write_baseline=write_baseline, config=config, pictures=out.shows_pictures(format), observer=out.TERMINAL,
    )  # fmt: skip
    out.finish(reports, format, file, fail_on, verbose=verbose)
