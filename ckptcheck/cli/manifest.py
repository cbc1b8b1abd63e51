"""``ckptcheck manifest`` writes down what every tensor is, ``ckptcheck verify`` says what has changed since."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from ckptcheck.cli.scan import FailOn, Format

JOBS = typer.Option(min=1, help="Tensors read at a time.", show_default="cores")
TARGET = typer.Argument(
    metavar="TARGET",
    help="A folder (Hugging Face or Megatron), a .safetensors file, an index, or hf://org/name@revision.",
)


def manifest(
    target: Annotated[str, TARGET],
    output: Annotated[Path, typer.Option("-o", "--output", metavar="FILE", help="Where to write the manifest.")],
    jobs: Annotated[int | None, JOBS] = None,
) -> None:
    """Write down dtype, shape and digest (xxh3-128) of every tensor."""
    from ckptcheck import manifest as manifests
    from ckptcheck.checkpoint.open import open_target
    from ckptcheck.cli.output import progress_bar, talk
    from ckptcheck.phrase import count

    with progress_bar(target) as progress:
        taken = manifests.take(open_target(target, jobs=jobs), jobs=jobs, progress=progress)
    manifests.write(taken, output)
    talk(f"{count(len(taken.tensors), 'tensor')} written to {output}")


def verify(
    target: Annotated[str, TARGET],
    manifest: Annotated[Path, typer.Argument(metavar="MANIFEST", help="What ckptcheck manifest wrote.")],
    format: Annotated[Format, typer.Option(help="Form of the report.")] = Format.text,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE", help="Write the report to a file.")
    ] = None,
    fail_on: Annotated[FailOn, typer.Option(help="Exit 1 for findings of this severity or graver.")] = FailOn.error,
    jobs: Annotated[int | None, JOBS] = None,
) -> None:
    """Say which tensors changed, moved or vanished since a manifest was taken.

    Exit codes: 0 the same, 1 findings at or above --fail-on, 2 could not verify.
    """
    from ckptcheck import manifest as manifests
    from ckptcheck import pack
    from ckptcheck.checkpoint.open import open_target
    from ckptcheck.cli import output as out
    from ckptcheck.run import run

    known = manifests.read(manifest)
    with out.progress_bar(target) as progress:
        evidence = manifests.compare(open_target(target, jobs=jobs), known, jobs=jobs, progress=progress)
    rules = pack.load()
    report = run(evidence, rules)
    out.deliver([report], rules, format.value, output)
    sys.stdout.flush()
    raise typer.Exit(report.exit_code(fail_on.value))
