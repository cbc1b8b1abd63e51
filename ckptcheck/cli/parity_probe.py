"""``ckptcheck parity probe``: experiments on an engine that tell one cause of a gap from another."""

from __future__ import annotations

from typing import Annotated

import typer

from ckptcheck import api
from ckptcheck.cli.options import (
    ComputeDtype,
    EngineMode,
    EngineName,
    EnginePython,
    EngineSwitches,
    FailOn,
    FloorFile,
    Format,
    FrequencyPenalty,
    HeadFp32,
    Output,
    PresencePenalty,
    Prompts,
    Source,
    Temperature,
    Timeout,
    TopK,
    TopP,
    TrainerPython,
    Verbose,
    WrittenOptions,
)
from ckptcheck.unused_options import reject_unused_probe_options


def probe(
    ctx: typer.Context,
    source: Source,
    engine: EngineName = "vllm",
    only: Annotated[
        list[str] | None, typer.Option("--only", metavar="PROBE", help="Run only this probe; repeatable.")
    ] = None,
    without: Annotated[
        list[str] | None, typer.Option("--without", metavar="PROBE", help="Leave this probe out; repeatable.")
    ] = None,
    compilation: Annotated[
        bool, typer.Option("--compilation", help="Also run the probes that compile: graphs, inductor, casts.")
    ] = False,
    trainer: Annotated[
        api.TrainerName | None,
        typer.Option(help="The trainer.", show_default="transformers, where a probe needs one"),
    ] = None,
    prompts: Prompts = None,
    length: Annotated[int, typer.Option(min=16, help="Tokens of a built-in prompt, at most.")] = 64,
    response: Annotated[int, typer.Option(min=4, help="Tokens of a response.")] = 32,
    long: Annotated[
        int, typer.Option(min=4, help="Tokens of the long response that is compared with one prefill.")
    ] = 64,
    room: Annotated[int, typer.Option(min=64, help="Tokens of the longest sequence.")] = 512,
    temperature: Temperature = 0.7,
    top_p: TopP = 1.0,
    top_k: TopK = 0,
    presence_penalty: PresencePenalty = 0.0,
    frequency_penalty: FrequencyPenalty = 0.0,
    dtype: ComputeDtype = "float32",
    head_fp32: HeadFp32 = False,
    floor: FloorFile = None,
    switch: EngineSwitches = None,
    engine_mode: EngineMode = "plain",
    engine_python: EnginePython = None,
    trainer_python: TrainerPython = None,
    timeout: Timeout = 900.0,
    format: Format = "text",
    output: Output = None,
    fail_on: FailOn = "error",
    verbose: Verbose = False,
) -> None:
    """Probe an engine for the known ways in which its logprobs drift from a trainer's.

    Exit codes: 0 no findings, 1 findings, 2 could not check.
    """
    from ckptcheck.cli import output as out
    from ckptcheck.text.file_io import require_output_apart, require_writable

    reject_unused_probe_options(WrittenOptions(ctx), has_prompts=prompts is not None, has_only=bool(only))
    require_output_apart(output, prompts, floor)
    require_writable(output)
    report = api.parity_probe(
        source, engine=engine, only=only or (), without=without or (), compilation=compilation,
        trainer=trainer or "transformers", prompts=prompts, length=length, response=response, long=long,
        room=room, temperature=temperature, top_p=top_p, top_k=top_k, presence_penalty=presence_penalty,
        frequency_penalty=frequency_penalty, dtype=dtype, head_fp32=head_fp32, floor=floor,
        switch=switch or (), engine_mode=engine_mode, engine_python=engine_python, trainer_python=trainer_python,
        timeout=timeout, pictures=out.shows_pictures(format), observer=out.TERMINAL,
    )  # fmt: skip
    out.finish(report, format, output, fail_on, verbose=verbose)
