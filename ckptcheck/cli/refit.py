"""``ckptcheck refit``: syncs a trainer's weights into a running engine, and proves that it computes with them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ckptcheck import api
from ckptcheck.cli.command_groups import complete_second_word
from ckptcheck.cli.options import (
    ComputeDtype,
    EngineMode,
    EnginePython,
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
    gpus,
)
from ckptcheck.errors import CkptcheckError
from ckptcheck.live.runtime.engines.transports import describe_transports
from ckptcheck.unused_options import (
    ATTACHED,
    reject_unused_attach_options,
    reject_unused_conformance_options,
    reject_unused_refit_options,
)

TRIAL_OPTIONS = (
    "engine", "engine_tp", "engine_ep", "engine_pp", "engine_dp",
    "engine_mode", "transport", "quantize", "ignore", "trainer_quantizer", "dtype", "engine_gpus",
    "switch", "send_draft", "bucket_mb", "pause", "steps", "perturb", "fast", "record", "rollouts", "sleep_level",
    "clear_cache",
)  # fmt: skip
"""Options of a trial. Servers that run already are taken as they are."""
SERVER_OPTIONS = ("allow_write", "allow_remote")


def refit(
    ctx: typer.Context,
    source: Annotated[
        str | None,
        typer.Argument(
            metavar="[SOURCE]",
            help="A Hugging Face checkpoint or a Megatron run on this disk.",
            show_default=False,
            autocompletion=complete_second_word,
        ),
    ] = None,
    engine: Annotated[str, typer.Option(help="The inference engine: vllm or sglang.")] = "vllm",
    attach: Annotated[
        list[str] | None,
        typer.Option(
            metavar="URL",
            help="A running SGLang or vLLM that should serve SOURCE; repeated: servers that should serve the same.",
        ),
    ] = None,
    allow_write: Annotated[
        bool, typer.Option("--allow-write", help="Overwrite the servers' weights and have them load SOURCE.")
    ] = False,
    allow_remote: Annotated[
        bool, typer.Option("--allow-remote", help="Also attach to servers on other machines.")
    ] = False,
    trainer: Annotated[
        api.TrainerName | None,
        typer.Option(help="The trainer that holds the weights.", show_default="megatron; with --attach transformers"),
    ] = None,
    tp: TrainerTp = 1,
    pp: TrainerPp = 1,
    ep: TrainerEp = 1,
    engine_tp: EngineTp = 1,
    engine_ep: Annotated[
        int, typer.Option(min=1, help="Expert parallelism of the engine, within the ranks of --engine-tp.")
    ] = 1,
    engine_pp: Annotated[int, typer.Option(min=1, help="Pipeline stages of the engine: refused, with the reason.")] = 1,
    engine_dp: Annotated[int, typer.Option(min=1, help="Replicas of the engine: refused, with the reason.")] = 1,
    engine_mode: EngineMode = "plain",
    transport: Annotated[
        str | None,
        typer.Option(
            help=f"How weights reach the engine. {describe_transports()}.",
            show_default="the first",
        ),
    ] = None,
    quantize: Annotated[
        api.Scheme | None,
        typer.Option(
            help="Quantize the weights on their way; not by nccl and ipc, which carry them as the trainer holds them. "
            "nvfp4, mxfp4 and mxfp8 are refused, with the reason."
        ),
    ] = None,
    ignore: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ENTRY",
            help="An entry of the list of modules that are not quantized; repeatable.",
            show_default="head and routers",
        ),
    ] = None,
    trainer_quantizer: Annotated[
        api.Quantizer,
        typer.Option(
            help="Whose reading of the ignore list decides: compressed-tensors, as the engine reads it, or slime."
        ),
    ] = "compressed-tensors",
    dtype: ComputeDtype = "float32",
    device: Annotated[
        api.Device,
        typer.Option(help="Where the trainer computes; auto: on GPUs where there are any, one for each rank."),
    ] = "auto",
    trainer_gpus: Annotated[
        str | None,
        typer.Option(metavar="N,…", callback=gpus, help="GPUs that the trainer may see.", show_default="all"),
    ] = None,
    engine_gpus: Annotated[
        str | None,
        typer.Option(metavar="N,…", callback=gpus, help="GPUs that the engine may see.", show_default="all"),
    ] = None,
    switch: Annotated[
        list[str] | None,
        typer.Option(
            "--switch",
            metavar="NAME=VALUE",
            help="A setting of the engine, repeatable: compilation=graphs, prefix_cache=off, …",
        ),
    ] = None,
    send_draft: Annotated[
        bool,
        typer.Option(
            "--send-draft", help="Also send what the engine drafts with (--switch draft=…), in a session of its own."
        ),
    ] = False,
    bucket_mb: Annotated[
        float, typer.Option(min=0.001, callback=finite, help="MB of a bucket of the first sync.")
    ] = 64.0,
    pause: Annotated[
        str | None,
        typer.Option(
            metavar="MODE",
            help="Sync while a request runs: keep, wait or abort (vllm); in_place, retract, abort or wait (sglang).",
            show_default="none runs",
        ),
    ] = None,
    sleep_level: Annotated[
        int, typer.Option(min=1, max=2, help="Weights while the engine sleeps: 1 kept on the host, 2 dropped.")
    ] = 1,
    clear_cache: Annotated[
        bool, typer.Option("--clear-cache", help="Reset the engine's prefix cache after each sync, as your job does.")
    ] = False,
    steps: Annotated[int, typer.Option(min=0, help="Optimizer steps, each followed by two syncs.")] = 1,
    perturb: Annotated[
        float | None,
        typer.Option(min=0, callback=finite, help="Move every weight by noise of this scale in place of a step."),
    ] = None,
    fast: Annotated[
        bool, typer.Option("--fast", help="For a gate in CI: leave out decoding; the report says what is not seen.")
    ] = False,
    check_weights: Annotated[
        bool,
        typer.Option(
            "--check-weight-update-equal/--no-check-weight-update-equal", help="Compare every tensor with a cold load."
        ),
    ] = True,
    check_logprobs: Annotated[
        bool, typer.Option("--check-logprobs/--no-check-logprobs", help="Compare logprobs on both sides.")
    ] = True,
    hf_config: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Folder with the config.json of a Megatron run's model, and its tokenizer if you like."
        ),
    ] = None,
    engine_python: EnginePython = None,
    trainer_python: TrainerPython = None,
    timeout: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[PHASE=]SECONDS",
            help="Seconds for each phase, or for those of one kind: start, score, step, sync; repeatable.",
            show_default="900, 600, 600, 300, and what reading the weights takes",
        ),
    ] = None,
    record: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Append the syncs to a record, see refit history.")
    ] = None,
    rollouts: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Record responses after the first sync, scored by both sides, see parity judge."
        ),
    ] = None,
    despite_errors: Annotated[
        bool,
        typer.Option("--despite-errors", help="Go on where the scan of SOURCE finds errors; the report names them."),
    ] = False,
    conformance: Annotated[
        bool,
        typer.Option(
            "--conformance",
            help="Put faults on the transport instead, one after the other, and report how each is answered;"
            " --transport module:Class names one of your own.",
        ),
    ] = False,
    markdown: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also write the table of --conformance in Markdown.")
    ] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the checkpoints that the trial writes.")] = False,
    format: Format = "text",
    output: Output = None,
    fail_on: FailOn = "error",
    verbose: Verbose = False,
) -> None:
    """Sync a trainer's weights into a live engine, at step 0 and after steps, and compare with a cold load of the same weights.

    With --conformance no trainer runs: faults are put on the transport, and the report says who noticed each.

    Exit codes: 0 the engine computes with the trainer's weights, 1 findings, 2 could not check.
    """
    from ckptcheck.cli import output as out
    from ckptcheck.live.refit.recording import RecordError
    from ckptcheck.text.file_io import require_output_apart, require_writable

    written = WrittenOptions(ctx)
    if conformance:
        reject_unused_conformance_options(
            written, is_own=transport is not None and ":" in transport, has_source=source is not None
        )
        require_writable(output)
        require_output_apart(output, markdown, Path(source) if source is not None else None)
        report = api.conformance(
            source, transport=transport, engine=engine, engine_tp=engine_tp, engine_mode=engine_mode, dtype=dtype,
            engine_gpus=engine_gpus, switch=switch or (), hf_config=hf_config, engine_python=engine_python,
            despite_errors=despite_errors, markdown=markdown, pictures=out.shows_pictures(format), observer=out.TERMINAL,
        )  # fmt: skip
        out.finish(report, format, output, fail_on, verbose=verbose)
    written.reject(["markdown"], "without --conformance")
    if attach:
        written.reject(TRIAL_OPTIONS, ATTACHED)
        reject_unused_attach_options(
            written, device=device, has_source=source is not None, checks_weights=check_weights,
            checks_logprobs=check_logprobs, timeouts=timeout or (),
        )  # fmt: skip
    else:
        written.reject(SERVER_OPTIONS, "without servers that run already", "name them with --attach")
        reject_unused_refit_options(
            written, device=device, quantizes=quantize is not None, steps=steps, checks_weights=check_weights,
            checks_logprobs=check_logprobs, timeouts=timeout or (),
        )  # fmt: skip
    if source is None and not attach:
        raise CkptcheckError("there is nothing to sync", hint="name a checkpoint, or running servers with --attach")
    require_writable(output)
    require_output_apart(output, record, rollouts, Path(source) if source is not None else None)
    if attach:
        report = api.attach(
            *attach, source=source, allow_write=allow_write, allow_remote=allow_remote,
            trainer=trainer or "transformers", tp=tp, pp=pp, ep=ep, device=device,
            trainer_gpus=trainer_gpus, check_weights=check_weights, check_logprobs=check_logprobs, hf_config=hf_config,
            engine_python=engine_python, trainer_python=trainer_python, timeout=timeout or (),
            despite_errors=despite_errors, keep=keep, pictures=out.shows_pictures(format), observer=out.TERMINAL,
        )  # fmt: skip
        out.finish(report, format, output, fail_on, verbose=verbose)
    assert source is not None
    record_error = None
    try:
        report = api.refit(
            source, engine=engine, trainer=trainer or "megatron", tp=tp, pp=pp, ep=ep, engine_tp=engine_tp,
            engine_ep=engine_ep, engine_pp=engine_pp, engine_dp=engine_dp,
            engine_mode=engine_mode, transport=transport, quantize=quantize, ignore=ignore,
            trainer_quantizer=trainer_quantizer, dtype=dtype, device=device, trainer_gpus=trainer_gpus,
            engine_gpus=engine_gpus, switch=switch or (), send_draft=send_draft, bucket_mb=bucket_mb, pause=pause,
            sleep_level=sleep_level, clear_cache=clear_cache, steps=steps, perturb=perturb, fast=fast, check_weights=check_weights,
            check_logprobs=check_logprobs, hf_config=hf_config,
            engine_python=engine_python, trainer_python=trainer_python, timeout=timeout or (), record=record,
            rollouts=rollouts, despite_errors=despite_errors, keep=keep, pictures=out.shows_pictures(format), observer=out.TERMINAL,
        )  # fmt: skip
    except RecordError as error:
        report, record_error = error.report, error
    out.finish(report, format, output, fail_on, verbose=verbose, record_error=record_error)
