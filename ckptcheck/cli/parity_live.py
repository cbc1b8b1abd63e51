"""``ckptcheck parity record | score | calibrate``: records rollouts of an engine, and adds a trainer's logprobs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ckptcheck import api
from ckptcheck.cli.options import (
    ComputeDtype,
    EngineMode,
    EngineName,
    EnginePython,
    EngineSwitches,
    EngineTp,
    FrequencyPenalty,
    HeadFp32,
    OutputFile,
    PresencePenalty,
    Prompts,
    RepetitionPenalty,
    Seed,
    Source,
    Temperature,
    Timeout,
    TopK,
    TopP,
    Trainer,
    TrainerDtype,
    TrainerEp,
    TrainerPp,
    TrainerPython,
    TrainerTp,
    WrittenOptions,
    finite,
)
from ckptcheck.unused_options import reject_unused_length


def record(
    ctx: typer.Context,
    source: Source,
    output: OutputFile,
    engine: EngineName = "vllm",
    prompts: Prompts = None,
    number: Annotated[int, typer.Option("--number", min=1, help="Prompts to answer.")] = 8,
    length: Annotated[int, typer.Option(min=4, help="Tokens of a built-in prompt, at most.")] = 96,
    response: Annotated[int, typer.Option(min=1, help="Tokens of a response, at most.")] = 32,
    batch: Annotated[int, typer.Option(min=1, help="Prompts that are answered at once.")] = 8,
    temperature: Temperature = 1.0,
    top_p: TopP = 1.0,
    top_k: TopK = 0,
    presence_penalty: PresencePenalty = 0.0,
    frequency_penalty: FrequencyPenalty = 0.0,
    repetition_penalty: RepetitionPenalty = 1.0,
    seed: Seed = 0,
    full: Annotated[
        int, typer.Option(min=0, help="Response tokens of which the logprobs of the whole vocabulary are kept.")
    ] = 0,
    routing: Annotated[bool, typer.Option("--routing", help="Also keep which experts tokens went to.")] = False,
    ignore_eos: Annotated[bool, typer.Option("--ignore-eos", help="Generate past end tokens.")] = False,
    step: Annotated[int | None, typer.Option(min=0, help="Step of the training run, kept with the rollouts.")] = None,
    dtype: ComputeDtype = "float32",
    switch: EngineSwitches = None,
    engine_mode: EngineMode = "plain",
    engine_tp: EngineTp = 1,
    engine_python: EnginePython = None,
    timeout: Timeout = 900.0,
) -> None:
    """Have an engine answer prompts, and write tokens and logprobs to a file. No trainer is loaded."""
    from ckptcheck.cli import output as out

    reject_unused_length(WrittenOptions(ctx), has_prompts=prompts is not None)
    api.record_rollouts(
        source, output, engine=engine, prompts=prompts, number=number, length=length, response=response, batch=batch,
        temperature=temperature, top_p=top_p, top_k=top_k, presence_penalty=presence_penalty,
        frequency_penalty=frequency_penalty, repetition_penalty=repetition_penalty, seed=seed, full=full, routing=routing,
        ignore_eos=ignore_eos,
        step=step, dtype=dtype, switch=switch or (), engine_mode=engine_mode, engine_tp=engine_tp,
        engine_python=engine_python, timeout=timeout, observer=out.TERMINAL,
    )  # fmt: skip


def score(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Rollouts, as record or convert wrote them.")],
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="The checkpoint that scores them.")],
    output: OutputFile,
    trainer: Trainer = "transformers",
    temperature: Annotated[
        float | None,
        typer.Option(
            min=1e-6, callback=finite, help="What logits are divided by.", show_default="that of the engine's logprobs"
        ),
    ] = None,
    trainer_version: Annotated[
        int | None,
        typer.Option(min=0, help="Version of its weights, as the engine counts them: what lag is counted from."),
    ] = None,
    tp: TrainerTp = 1,
    pp: TrainerPp = 1,
    ep: TrainerEp = 1,
    dtype: ComputeDtype = "float32",
    head_fp32: HeadFp32 = False,
    tokens: Annotated[
        int, typer.Option(min=1, help="Tokens that the trainer is handed at once, padding included.")
    ] = 8192,
    trainer_python: TrainerPython = None,
    timeout: Timeout = 900.0,
) -> None:
    """Have a trainer score rollouts, and write them with its logprobs. No engine is loaded."""
    from ckptcheck.cli import output as out

    api.score_rollouts(
        file, source, output, trainer=trainer, temperature=temperature, trainer_version=trainer_version, tp=tp, pp=pp,
        ep=ep, dtype=dtype, head_fp32=head_fp32, tokens=tokens, trainer_python=trainer_python, timeout=timeout,
        observer=out.TERMINAL,
    )  # fmt: skip


def calibrate(
    ctx: typer.Context,
    source: Source,
    output: OutputFile,
    engine: EngineName = "vllm",
    trainer: Trainer = "transformers",
    prompts: Prompts = None,
    number: Annotated[int, typer.Option("--number", min=1, help="Prompts to answer.")] = 8,
    length: Annotated[int, typer.Option(min=4, help="Tokens of a built-in prompt, at most.")] = 96,
    response: Annotated[int, typer.Option(min=1, help="Tokens of a response.")] = 32,
    dtype: ComputeDtype = "float32",
    trainer_dtype: TrainerDtype = None,
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
) -> None:
    """Measure the noise floor of a model: the gap that equal weights have between both sides, and of each side with itself."""
    from rich.console import Console

    from ckptcheck.cli import output as out
    from ckptcheck.reporters import tables

    reject_unused_length(WrittenOptions(ctx), has_prompts=prompts is not None)
    measurement = api.calibrate_floor(
        source, output, engine=engine, trainer=trainer, prompts=prompts, number=number, length=length,
        response=response, dtype=dtype, trainer_dtype=trainer_dtype,
        head_fp32=head_fp32, tp=tp, pp=pp, ep=ep, switch=switch or (), engine_mode=engine_mode, engine_tp=engine_tp,
        engine_python=engine_python, trainer_python=trainer_python, timeout=timeout, observer=out.TERMINAL,
    )  # fmt: skip
    tables.write(Console(), measurement.section())
