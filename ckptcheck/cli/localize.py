"""``ckptcheck parity localize``: names the first module whose output differs between trainer and engine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ckptcheck import api
from ckptcheck.cli.options import (
    ComputeDtype,
    EngineMode,
    EnginePython,
    EngineSource,
    EngineTp,
    FailOn,
    Format,
    Output,
    TrainerEp,
    TrainerPp,
    TrainerPython,
    TrainerTp,
    Verbose,
    WrittenOptions,
    finite,
)
from ckptcheck.errors import CkptcheckError
from ckptcheck.unused_options import reject_unused_localize_options


def localize(
    ctx: typer.Context,
    source: Annotated[
        Path | None, typer.Argument(metavar="SOURCE", help="A Hugging Face checkpoint on this disk.")
    ] = None,
    dumps: Annotated[
        tuple[Path, Path] | None,
        typer.Option(
            metavar="A B", help="Compare dumps made elsewhere (msProbe's, SGLang's) instead of running anything."
        ),
    ] = None,
    engine: Annotated[str, typer.Option(help="The inference engine: vllm or sglang; or the other trainer.")] = "vllm",
    engine_source: EngineSource = None,
    trainer: Annotated[api.TrainerName, typer.Option(help="The reference.")] = "transformers",
    tp: TrainerTp = 1,
    pp: TrainerPp = 1,
    ep: TrainerEp = 1,
    engine_tp: EngineTp = 1,
    engine_mode: EngineMode = "plain",
    dtype: ComputeDtype = "float32",
    tokens: Annotated[
        str | None,
        typer.Option(metavar="IDS", help="The prompt as ids, 1,2,3.", show_default="48 made-up ones, always the same"),
    ] = None,
    limit: Annotated[
        float | None,
        typer.Option(
            min=0,
            callback=finite,
            help="Relative difference that is still equal.",
            show_default="by the dtype's rounding",
        ),
    ] = None,
    engine_python: EnginePython = None,
    trainer_python: TrainerPython = None,
    timeout: Annotated[float, typer.Option(min=1, callback=finite, help="Seconds for each side.")] = 900.0,
    format: Format = "text",
    output: Output = None,
    fail_on: FailOn = "error",
    verbose: Verbose = False,
) -> None:
    """Send one prompt through trainer and engine and name the first module whose output differs, and how.

    Exit codes: 0 they agree up to rounding, 1 they differ, 2 could not check.
    """
    from ckptcheck.cli import output as out
    from ckptcheck.text.file_io import require_writable

    reject_unused_localize_options(WrittenOptions(ctx), has_dumps=dumps is not None, engine=engine)
    require_writable(output)
    report = api.localize(
        source, dumps=dumps, engine=engine, engine_source=engine_source, trainer=trainer, tp=tp, pp=pp, ep=ep,
        engine_tp=engine_tp, engine_mode=engine_mode, dtype=dtype, tokens=_parse_tokens(tokens) if tokens else None,
        limit=limit, engine_python=engine_python, trainer_python=trainer_python, timeout=timeout,
        pictures=out.shows_pictures(format), observer=out.TERMINAL,
    )  # fmt: skip
    out.finish(report, format, output, fail_on, verbose=verbose)


def _parse_tokens(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise CkptcheckError(f"--tokens {text} are no ids", hint="as in --tokens 1,2,3") from None
