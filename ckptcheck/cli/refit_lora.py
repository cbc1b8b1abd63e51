"""``ckptcheck refit lora``: loads a LoRA adapter into a live engine, and checks what requests with it compute."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ckptcheck import api
from ckptcheck.cli.options import (
    ComputeDtype,
    EngineMode,
    EnginePython,
    EngineTp,
    FailOn,
    Format,
    Output,
    Verbose,
    gpus,
)


def lora(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="The base model: a checkpoint on this disk.")],
    adapter: Annotated[
        Path, typer.Argument(metavar="ADAPTER", help="The folder of a LoRA adapter, as PEFT writes it.")
    ],
    engine: Annotated[str, typer.Option(help="The inference engine: vllm or sglang.")] = "vllm",
    update: Annotated[
        api.AdapterUpdate,
        typer.Option(
            help="How the job loads a new adapter under the old name: reload (unload, then load), inplace (vLLM's "
            "load_inplace), same (vLLM: the same name and number with a new path)."
        ),
    ] = "reload",
    engine_tp: EngineTp = 1,
    engine_mode: EngineMode = "plain",
    dtype: ComputeDtype = "float32",
    engine_gpus: Annotated[
        str | None,
        typer.Option(metavar="N,…", callback=gpus, help="GPUs that the engine may see.", show_default="all"),
    ] = None,
    engine_python: EnginePython = None,
    timeout: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[PHASE=]SECONDS",
            help="Seconds for each phase, or for those of one kind: start (of an engine), sync (adapters are loaded and "
            "scored); repeatable.",
            show_default="900, 300, and what reading the weights takes",
        ),
    ] = None,
    format: Format = "text",
    output: Output = None,
    fail_on: FailOn = "error",
    verbose: Verbose = False,
) -> None:
    """Load an adapter, evict it, replace it under its name, and hold each to a cold load and to the merged checkpoint.

    Exit codes: 0 requests get the adapter, 1 findings, 2 could not check.
    """
    from ckptcheck.cli import output as out
    from ckptcheck.text.file_io import require_output_apart, require_writable

    require_writable(output)
    require_output_apart(output, adapter, Path(source))
    report = api.lora(
        source, adapter, engine=engine, update=update, engine_tp=engine_tp, engine_mode=engine_mode, dtype=dtype,
        engine_gpus=engine_gpus, engine_python=engine_python, timeout=timeout or (),
        pictures=out.shows_pictures(format), observer=out.TERMINAL,
    )  # fmt: skip
    out.finish(report, format, output, fail_on, verbose=verbose)
