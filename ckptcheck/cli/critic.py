"""``ckptcheck critic SOURCE``: loads a critic in transformers and in megatron-core, and compares what both compute."""

from __future__ import annotations

from typing import Annotated

import typer

from ckptcheck import api
from ckptcheck.cli.options import FailOn, Format, Output, Timeout, TrainerPython, Verbose, split_list


def critic(
    source: Annotated[
        str,
        typer.Argument(metavar="SOURCE", help="A critic on this disk, or a language model, to which a head is added."),
    ],
    layouts: Annotated[
        list[str] | None,
        typer.Option(
            metavar="LAYOUT,…",
            help="Megatron's parallel layouts: tp2, pp2, tp2pp2, pp2vpp2.",
            show_default="tp1, tp2, pp2, pp2vpp2 where they fit",
        ),
    ] = None,
    length: Annotated[int, typer.Option(min=4, help="Tokens of a sequence.")] = 16,
    trainer_python: TrainerPython = None,
    timeout: Timeout = 900.0,
    format: Format = "text",
    output: Output = None,
    fail_on: FailOn = "error",
    verbose: Verbose = False,
) -> None:
    """Compare a critic in transformers and in megatron-core: values [B, S, 1], loss and gradients, in parallel layouts.

    Exit codes: 0 equal, 1 different, 2 could not compare.
    """
    from ckptcheck.cli import output as out

    report = api.critic(
        source, layouts=split_list("--layouts", layouts or []), length=length, trainer_python=trainer_python, timeout=timeout,
        pictures=out.shows_pictures(format), observer=out.TERMINAL,
    )  # fmt: skip
    out.finish(report, format, output, fail_on, verbose=verbose)
