"""``ckptcheck parity why``: names the cause of a gap by experiments that take one cause away at a time."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ckptcheck import api
from ckptcheck.cli.options import (
    EngineMode,
    EnginePython,
    EngineSource,
    EngineSwitches,
    EngineTp,
    FailOn,
    Format,
    HeadFp32,
    Output,
    Timeout,
    Trainer,
    TrainerEp,
    TrainerPp,
    TrainerPython,
    TrainerTp,
    Verbose,
    WrittenOptions,
)
from ckptcheck.unused_options import reject_unused_why_options


def why(
    ctx: typer.Context,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Rollouts: as record, score or convert wrote them.")],
    source: Annotated[
        str | None,
        typer.Argument(metavar="SOURCE", help="The trainer's checkpoint on this disk; without it nothing runs."),
    ] = None,
    engine: Annotated[
        str, typer.Option("--engine", help="The inference engine; none: only the trainer runs.")
    ] = "vllm",
    engine_source: EngineSource = None,
    trainer: Trainer = "transformers",
    floor: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="The noise floor of this model: a file of calibrate, or rollouts with equal weights.",
            show_default="by dtype",
        ),
    ] = None,
    dtype: Annotated[
        api.Dtype | None,
        typer.Option("--dtype", help="The dtype that the engine computes in.", show_default="as recorded"),
    ] = None,
    trainer_dtype: Annotated[
        api.Dtype | None, typer.Option(help="The dtype that the trainer computes in.", show_default="as recorded")
    ] = None,
    head_fp32: HeadFp32 = False,
    tp: TrainerTp = 1,
    pp: TrainerPp = 1,
    ep: TrainerEp = 1,
    switch: EngineSwitches = None,
    engine_mode: EngineMode = "plain",
    engine_tp: EngineTp = 1,
    engine_python: EnginePython = None,
    trainer_python: TrainerPython = None,
    timeout: Timeout = 900.0,
    format: Format = "text",
    output: Output = None,
    fail_on: FailOn = "error",
    verbose: Verbose = False,
) -> None:
    """Name the layer of a gap's cause (semantics, weights, path, precision, routing, objective), and the experiment that shows it.

    FILE alone is explained as far as what is recorded allows. With SOURCE a trainer and an engine score the same tokens
    again, with one thing changed at a time.

    Exit codes: 0 no gap, or one that is no error, 1 findings, 2 could not check.
    """
    from ckptcheck.cli import output as out
    from ckptcheck.text.file_io import require_output_apart, require_writable

    reject_unused_why_options(WrittenOptions(ctx), has_source=source is not None, engine=engine)
    require_writable(output)
    require_output_apart(output, file, floor)
    report = api.parity_why(
        file, source, engine=engine, engine_source=engine_source, trainer=trainer, floor=floor,
        dtype=dtype, trainer_dtype=trainer_dtype,
        head_fp32=head_fp32, tp=tp, pp=pp, ep=ep, switch=switch or (), engine_mode=engine_mode, engine_tp=engine_tp,
        engine_python=engine_python, trainer_python=trainer_python, timeout=timeout,
        pictures=out.shows_pictures(format), observer=out.TERMINAL,
    )  # fmt: skip
    out.finish(report, format, output, fail_on, verbose=verbose)
