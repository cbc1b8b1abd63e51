"""``ckptcheck scan``: evidence, rules, report."""

from __future__ import annotations

import enum
import sys
from pathlib import Path
from typing import Annotated

import typer

from ckptcheck.cli.numbers import finite
from ckptcheck.errors import CkptcheckError


class Format(enum.StrEnum):
    """Forms of the report."""

    text = "text"
    json = "json"
    sarif = "sarif"
    junit = "junit"
    github = "github"


class FailOn(enum.StrEnum):
    """The lightest severity that makes the exit code 1."""

    error = "error"
    warning = "warning"
    info = "info"
    never = "never"


OF_VALUES = ("no_mmap", "device", "near_zero_threshold", "identical_threshold")
"""They say how values are read and judged."""
OF_REPORTS = (
    "headers_only", "values", "verify_blobs", "stats", *OF_VALUES, "select", "ignore", "format", "output", "fail_on",
    "baseline", "write_baseline", "verbose",
)  # fmt: skip
"""They say what is looked at and reported. --diff judges nothing."""


def scan(
    ctx: typer.Context,
    targets: Annotated[
        list[str],
        typer.Argument(metavar="TARGET", help="A folder, a .safetensors file, an index, or hf://org/name@revision."),
    ],
    headers_only: Annotated[
        bool, typer.Option("--headers-only", help="Read headers and configs only, no tensor values.")
    ] = False,
    values: Annotated[bool, typer.Option("--values", help="Read the values of a target on the Hub too.")] = False,
    verify_blobs: Annotated[
        bool,
        typer.Option("--verify-blobs", help="Hash the files of a cached snapshot against the names of their blobs."),
    ] = False,
    near_zero_threshold: Annotated[
        float, typer.Option(callback=finite, help="Rows of embeddings below this magnitude are near zero.")
    ] = 1e-10,
    identical_threshold: Annotated[
        float, typer.Option(callback=finite, help="Rows whose standard deviation is below this are one number.")
    ] = 1e-8,
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
            help="Ask these what they make of a quantized checkpoint, and print a table: vllm, sglang, transformers,"
            " compressed-tensors, slime.",
            show_default="vllm,sglang, without a table",
        ),
    ] = [],  # noqa: B006
    no_mmap: Annotated[
        bool, typer.Option("--no-mmap", help="Read files, do not map them (network file systems).")
    ] = False,
    device: Annotated[
        str, typer.Option(help="Look at the values on this device, as torch names it: cuda, cuda:1.")
    ] = "cpu",
    select: Annotated[
        list[str], typer.Option(help="Run only these rules: codes or beginnings of codes, IDX,CFG003.")
    ] = [],  # noqa: B006
    ignore: Annotated[list[str], typer.Option(help="Leave these rules out; they are reported as skipped.")] = [],  # noqa: B006
    rules: Annotated[
        list[Path], typer.Option(metavar="DIR", help="Load further rules from this folder. Runs their code.")
    ] = [],  # noqa: B006
    format: Annotated[Format, typer.Option(help="Form of the report.")] = Format.text,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE", help="Write the report to a file.")
    ] = None,
    fail_on: Annotated[
        FailOn | None, typer.Option(help="Exit 1 for findings of this severity or graver.", show_default="error")
    ] = None,
    jobs: Annotated[int | None, typer.Option(min=1, help="Files read at a time.", show_default="cores")] = None,
    fix: Annotated[
        bool, typer.Option("--fix", help="Make the safe repairs, then report what remains. Keeps the old file.")
    ] = False,
    diff: Annotated[bool, typer.Option("--diff", help="Print what --fix would change, and nothing else.")] = False,
    baseline: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Leave out the findings that this file lists.")
    ] = None,
    write_baseline: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the findings to this file as known.")
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Settings.", show_default="the nearest ckptcheck.toml or pyproject.toml"),
    ] = None,
    verbose: Annotated[bool, typer.Option("-v", "--verbose", help="Also list the rules that passed.")] = False,
) -> None:
    """Check checkpoints: what is missing, broken, or not what its author meant.

    Exit codes: 0 clean, 1 findings at or above --fail-on, 2 could not check.
    """
    from ckptcheck import baseline as known_findings
    from ckptcheck import pack, settings
    from ckptcheck.checkpoint.options import Options
    from ckptcheck.cli import output as out
    from ckptcheck.cli.examine import Plan, examine, show_repairs
    from ckptcheck.cli.idle import Given
    from ckptcheck.select import matching, selected
    from ckptcheck.writing import one_file_each

    given = Given(ctx)
    if fix and diff:
        raise CkptcheckError("--fix makes the repairs and --diff only shows them; choose one")
    if headers_only and stats:
        raise CkptcheckError("--headers-only leaves the values out that --stats would write; choose one")
    if headers_only and values:
        raise CkptcheckError("--headers-only leaves the values out and --values reads them; choose one")
    one_file_each({"--stats": stats, "--write-baseline": write_baseline, "-o": output})
    if diff:
        given.refuse(OF_REPORTS, "with --diff, which only shows what --fix would change")
    if write_baseline:
        given.refuse(["baseline"], "with --write-baseline, which lists all findings anew")
    if headers_only:
        given.refuse(OF_VALUES, "with --headers-only: no values are read")
    elif not values and all(target.startswith("hf://") for target in targets):
        given.refuse(OF_VALUES, "for targets on the Hub: their values are not read", "give --values too")
    written = settings.load(config) if config else settings.find(Path.cwd(), targets)
    loaded = pack.load([*written.rule_folders, *rules])
    ignored = written.ignored_codes(loaded)
    for pattern in _split(ignore):
        ignored |= {found.code: "ignored on the command line" for found in matching(loaded, pattern)}
    plan = Plan(
        rules=selected(loaded, _split(select) or written.select),
        ignored=ignored,
        severities=written.severity_codes(loaded),
        jobs=jobs,
        fix=fix,
        headers_only=headers_only,
        remote_values=values,
        use_mmap=not no_mmap,
        device=device,
        stats=stats,
        options=Options(verify_blobs, near_zero_threshold, identical_threshold, _consumers(_split(consumers))),
    )
    if diff:
        raise typer.Exit(show_repairs(targets, plan))
    known = known_findings.read(baseline) if baseline else frozenset()
    reports = examine(targets, plan)
    if write_baseline:
        number = known_findings.write(write_baseline, reports)
        out.talk(f"{number} finding{'' if number == 1 else 's'} written to {write_baseline}")
        known = known_findings.read(write_baseline)
    if known:
        reports = [known_findings.without(report, known) for report in reports]
    out.deliver(reports, loaded, format.value, output, verbose=verbose)
    threshold = fail_on.value if fail_on else written.fail_on
    sys.stdout.flush()
    raise typer.Exit(max(report.exit_code(threshold) for report in reports))


def _consumers(names: list[str]) -> tuple[str, ...]:
    """Check the names of consumers."""
    if not names:
        return ()
    from difflib import get_close_matches

    from ckptcheck.dialects.judgement import DIALECTS

    for name in names:
        if name not in DIALECTS:
            near = get_close_matches(name, DIALECTS, 1)
            raise CkptcheckError(
                f"{name!r} is no consumer that ckptcheck knows" + (f"; did you mean {near[0]}?" if near else ""),
                hint=f"known are {', '.join(DIALECTS)}",
            )
    return tuple(dict.fromkeys(names))


def _split(values: list[str]) -> list[str]:
    """Split ``--select IDX,CFG003 --select MOE`` into its codes."""
    return [part.strip() for value in values for part in value.split(",") if part.strip()]
