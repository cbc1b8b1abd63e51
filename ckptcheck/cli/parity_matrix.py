"""``ckptcheck parity matrix``: measures NeMo-RL's table on engines and trainers."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from ckptcheck import api
from ckptcheck.cli.options import (
    ComputeDtype,
    EngineMode,
    EnginePython,
    EngineSwitches,
    EngineTp,
    FailOn,
    FloorFile,
    Format,
    HeadFp32,
    Output,
    Seed,
    Source,
    Temperature,
    Timeout,
    TopK,
    TopP,
    TrainerEp,
    TrainerPp,
    TrainerPython,
    TrainerTp,
    Verbose,
    WrittenOptions,
    finite,
    split_list,
)
from ckptcheck.errors import CkptcheckError, UsageError
from ckptcheck.unused_options import reject_unused_matrix_options

WHOLE_NUMBER = re.compile(r"0*[1-9][0-9]{0,17}")
"""A whole number from 1 on; Python converts no more than some thousand digits."""


def matrix(
    ctx: typer.Context,
    source: Source,
    lengths: Annotated[
        str | None,
        typer.Option(
            help="Tokens of prompt and response.", show_default="100,1000,10000, where the model has the room"
        ),
    ] = None,
    data: Annotated[
        str, typer.Option(help="real: text in the chat template; synthetic: made-up ids.")
    ] = "real,synthetic",
    decoding: Annotated[str, typer.Option(help="greedy, sampling.")] = "greedy,sampling",
    batch: Annotated[str, typer.Option(help="Requests at once.")] = "1,8",
    pairs: Annotated[str, typer.Option(help="trainer:engine, …; or two trainers, transformers:megatron.")] = (
        "transformers:vllm"
    ),
    layouts: Annotated[
        str,
        typer.Option(
            help="Parallel layouts as a further axis, tp1,tp2,tp2pp2: all of one for megatron, its TP for engines.",
            show_default="one, that of --tp, --pp, --ep and --engine-tp",
        ),
    ] = "",
    directions: Annotated[str, typer.Option(help="Who samples the tokens: engine, trainer.")] = "engine,trainer",
    repeats: Annotated[int, typer.Option(min=1, help="Runs of every cell.")] = 2,
    response: Annotated[int, typer.Option(min=1, help="Tokens of a response.")] = 16,
    sequences: Annotated[int, typer.Option(min=1, help="Sequences of a cell, at least.")] = 4,
    temperature: Temperature = 1.0,
    top_p: TopP = 1.0,
    top_k: TopK = 0,
    seed: Seed = 0,
    calibrate: Annotated[
        bool, typer.Option("--calibrate", help="Measure the noise floor first, and give gaps as multiples of it.")
    ] = False,
    floor: FloorFile = None,
    tp: TrainerTp = 1,
    pp: TrainerPp = 1,
    ep: TrainerEp = 1,
    engine_tp: EngineTp = 1,
    dtype: ComputeDtype = "float32",
    head_fp32: HeadFp32 = False,
    switch: EngineSwitches = None,
    engine_mode: EngineMode = "plain",
    engine_python: EnginePython = None,
    trainer_python: TrainerPython = None,
    max_mult_prob_error: Annotated[
        float, typer.Option(min=1, callback=finite, help="Limit of a cell's mean exp|Δ|.")
    ] = 1.05,
    max_floor_multiple: Annotated[
        float, typer.Option(min=1, callback=finite, help="Multiple of the noise floor that is too much.")
    ] = 5.0,
    resume: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Keep the measurements in this file; a later run goes on from it."),
    ] = None,
    markdown: Annotated[Path | None, typer.Option(metavar="FILE", help="Also write the table in Markdown.")] = None,
    timeout: Timeout = 900.0,
    format: Format = "text",
    output: Output = None,
    fail_on: FailOn = "error",
    verbose: Verbose = False,
) -> None:
    """Measure the gap between trainers and engines over lengths, data, decoding and batches, with the variance over runs.

    Exit codes: 0 all cells are within the limits, 1 findings, 2 could not check.
    """
    from ckptcheck.cli import output as out
    from ckptcheck.text.file_io import real_path, require_output_apart, require_writable

    require_output_apart(output, floor, Path(source))
    require_writable(output)
    if output is not None and real_path(output) in [real_path(file) for file in (markdown, resume) if file is not None]:
        raise UsageError("-o, --markdown and --resume are to be files of their own")
    pair_list, layout_list = split_list("--pairs", [pairs]), split_list("--layouts", [layouts] if layouts else [])
    decoding_list = split_list("--decoding", [decoding])
    reject_unused_matrix_options(
        WrittenOptions(ctx),
        has_floor=calibrate or floor is not None,
        pairs=pair_list,
        decoding=decoding_list,
        layouts=layout_list,
    )
    report = api.parity_matrix(
        source, lengths=None if lengths is None else _parse_numbers(lengths, "--lengths"),
        data=split_list("--data", [data]), decoding=decoding_list,
        batch=_parse_numbers(batch, "--batch"), pairs=pair_list, layouts=layout_list,
        directions=split_list("--directions", [directions]),
        repeats=repeats, response=response, sequences=sequences, temperature=temperature, top_p=top_p, top_k=top_k, seed=seed,
        calibrate=calibrate, floor=floor, tp=tp, pp=pp, ep=ep, engine_tp=engine_tp, dtype=dtype, head_fp32=head_fp32,
        switch=switch or (), engine_mode=engine_mode, engine_python=engine_python, trainer_python=trainer_python,
        max_mult_prob_error=max_mult_prob_error, max_floor_multiple=max_floor_multiple, resume=resume, markdown=markdown,
        timeout=timeout, pictures=out.shows_pictures(format), observer=out.TERMINAL,
    )  # fmt: skip
    out.finish(report, format, output, fail_on, verbose=verbose)


def _parse_numbers(text: str, option: str) -> list[int]:
    """Split a comma-separated list of whole numbers from 1 on. Raises CkptcheckError."""
    numbers = split_list(option, [text])
    for number in numbers:
        if not WHOLE_NUMBER.fullmatch(number):
            raise CkptcheckError(f"{option} takes whole numbers, not {number}")
    return [int(number) for number in numbers]
