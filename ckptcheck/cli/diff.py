"""``ckptcheck diff A B``: are these two checkpoints the same model, and if not, why not."""

from __future__ import annotations

import enum
import sys
from pathlib import Path
from typing import Annotated

import typer

from ckptcheck.cli.numbers import finite
from ckptcheck.cli.scan import FailOn, Format
from ckptcheck.errors import CkptcheckError

FORMS = "A folder (Hugging Face or Megatron), a .safetensors file, an index, or hf://org/name@revision."


class Bridge(enum.StrEnum):
    """Whose mapping brings Megatron's tensors and Hugging Face's together."""

    builtin = "builtin"
    mbridge = "mbridge"
    both = "both"


def diff(
    first: Annotated[str, typer.Argument(metavar="A", help=f"The reference. {FORMS}")],
    second: Annotated[str, typer.Argument(metavar="B", help="What was made of it.")],
    cast: Annotated[
        str,
        typer.Option(
            help="Compare in this dtype (bf16, fp16, fp32); auto: B's own where its config declares it; none."
        ),
    ] = "auto",
    rtol: Annotated[float, typer.Option(callback=finite, help="Relative tolerance, of A's numbers.")] = 0.0,
    atol: Annotated[float, typer.Option(callback=finite, help="Absolute tolerance.")] = 0.0,
    previous: Annotated[
        str | None,
        typer.Option(
            metavar="C", help="The version before A, where B was to be updated: what B still has of it is stale."
        ),
    ] = None,
    critic: Annotated[
        bool, typer.Option("--critic", help="One side is a critic: only the heads may be missing or extra.")
    ] = False,
    bridge: Annotated[
        Bridge,
        typer.Option(help="Map Megatron's tensors by the built-in tables, by mbridge, or compare both mappings."),
    ] = Bridge.builtin,
    format: Annotated[Format, typer.Option(help="Form of the report.")] = Format.text,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE", help="Write the report to a file.")
    ] = None,
    fail_on: Annotated[FailOn, typer.Option(help="Exit 1 for findings of this severity or graver.")] = FailOn.error,
    jobs: Annotated[int | None, typer.Option(min=1, help="Threads that compare.", show_default="cores")] = None,
    verbose: Annotated[bool, typer.Option("-v", "--verbose", help="Also list the rules that passed.")] = False,
) -> None:
    """Compare two checkpoints tensor by tensor: bit for bit, across layouts, and say why they differ.

    Exit codes: 0 equal, 1 different, 2 could not compare.
    """
    from ckptcheck import pack
    from ckptcheck.cli import output as out
    from ckptcheck.comparison.cast import dtype_named
    from ckptcheck.comparison.comparison import Comparison
    from ckptcheck.comparison.open import open_side
    from ckptcheck.comparison.terms import Terms
    from ckptcheck.run import run

    wanted = cast if cast in ("auto", "none") else dtype_named(cast)
    if wanted is None:
        raise CkptcheckError(f"{cast!r} is no dtype to compare in", hint="choose auto, none, bf16, fp16, fp32 or fp64")
    rules = pack.load()
    with out.progress_bar(f"{first} ↔ {second}") as progress:
        sides = open_side(first, jobs=jobs), open_side(second, jobs=jobs)
        if bridge is not Bridge.builtin and sides[0].is_megatron == sides[1].is_megatron:
            raise CkptcheckError(
                f"--bridge {bridge.value} means nothing between two checkpoints of one form",
                "a bridge maps between Megatron's tensors and Hugging Face's",
            )
        before = open_side(previous, jobs=jobs) if previous is not None else None
        evidence = Comparison(
            *sides, Terms(wanted, rtol, atol), critic, bridge.value, previous=before, jobs=jobs, progress=progress
        )
        _ = evidence.opinion  # trouble with it is trouble with the command
        report = run(evidence, rules)
    out.deliver([report], rules, format.value, output, verbose=verbose)
    sys.stdout.flush()
    raise typer.Exit(report.exit_code(fail_on.value))
