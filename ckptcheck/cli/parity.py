"""``ckptcheck parity``: measures the gap between an engine's logprobs and a trainer's. This module has the commands that need
neither; parity_live.py, parity_matrix.py, parity_probe.py, parity_why.py and localize.py have those that run them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ckptcheck import api
from ckptcheck.cli import localize, parity_live, parity_matrix, parity_probe, parity_why
from ckptcheck.cli.command_groups import CommandGroup
from ckptcheck.cli.options import FailOn, FloorFile, Format, Output, Verbose, WrittenOptions, finite
from ckptcheck.cli.report_command import ReportCommand
from ckptcheck.unused_options import reject_unused_judge_options

parity = typer.Typer(
    cls=CommandGroup,
    help="Measure the gap between an engine's logprobs and a trainer's.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in (
    parity_live.record,
    parity_live.score,
    parity_live.calibrate,
    parity_matrix.matrix,
    parity_probe.probe,
    parity_why.why,
    localize.localize,
):
    parity.command(cls=ReportCommand)(command)


@parity.command(cls=ReportCommand)
def judge(
    ctx: typer.Context,
    files: Annotated[
        list[Path],
        typer.Argument(metavar="FILE…", help="Rollouts that both sides scored; several, or a folder: one run."),
    ],
    against: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="REFERENCE", help="Rollouts of a run to follow, at the same steps: a folder, or a file each time."
        ),
    ] = None,
    floor: FloorFile = None,
    max_mult_prob_error: Annotated[float, typer.Option(min=1, callback=finite, help="Limit of mean exp|Δ|.")] = 1.05,
    max_kl: Annotated[float, typer.Option(callback=finite, help="Limit of KL, nats a token.")] = 0.01,
    max_prob_diff: Annotated[
        float, typer.Option(callback=finite, help="Limit of the mean difference of probabilities.")
    ] = 0.01,
    max_abs: Annotated[
        float | None,
        typer.Option(callback=finite, help="Limit of mean |Δ| in nats; slime's CI has 0.1.", show_default="none"),
    ] = None,
    max_sequence_error: Annotated[
        float, typer.Option(min=1, callback=finite, help="Limit of mean exp|Δ| of any one sequence.")
    ] = 2.0,
    max_floor_multiple: Annotated[
        float, typer.Option(min=1, callback=finite, help="Multiple of the noise floor that is too much.")
    ] = 5.0,
    max_lag: Annotated[
        int, typer.Option(min=0, help="Versions that tokens may be older than the trainer's weights.")
    ] = 1,
    clip_low: Annotated[
        float | None,
        typer.Option(callback=finite, help="Clip the ratio below 1 - N.", show_default="as the file says, else 0.2"),
    ] = None,
    clip_high: Annotated[
        float | None,
        typer.Option(callback=finite, help="Clip the ratio above 1 + N.", show_default="as the file says, else 0.2"),
    ] = None,
    no_limits: Annotated[
        bool, typer.Option("--no-limits", help="Judge only by the floor, and what is wrong in itself.")
    ] = False,
    exact: Annotated[
        bool, typer.Option("--exact", help="Any difference between the two sides is an error: truly on policy.")
    ] = False,
    checkpoint: Annotated[
        str | None,
        typer.Option(
            metavar="DIR", help="The checkpoint that drew the tokens: checks experts, stop tokens, the conversation."
        ),
    ] = None,
    history: Annotated[
        Path | None,
        typer.Option(metavar="RECORD", help="The job's record of syncs: are weight versions what they say they are?"),
    ] = None,
    tokenizer: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="A checkpoint whose tokenizer.json decodes the worst tokens.",
            show_default="that of --checkpoint",
        ),
    ] = None,
    format: Format = "text",
    output: Output = None,
    fail_on: FailOn = "error",
    verbose: Verbose = False,
) -> None:
    """Judge saved rollouts: no engine, no trainer, no GPU. The same files give the same report, byte for byte.

    Exit codes: 0 within the limits, 1 findings, 2 could not check.
    """
    from ckptcheck.cli import output as out
    from ckptcheck.text.file_io import require_output_apart

    reject_unused_judge_options(WrittenOptions(ctx), no_limits=no_limits, has_floor=floor is not None)
    require_output_apart(output, *files, *against or (), floor, history)
    reports = api.judge_all(
        files, against=against or (), floor=floor, max_mult_prob_error=max_mult_prob_error, max_kl=max_kl,
        max_prob_diff=max_prob_diff, max_abs=max_abs, max_sequence_error=max_sequence_error,
        max_floor_multiple=max_floor_multiple, max_lag=max_lag, clip_low=clip_low, clip_high=clip_high,
        no_limits=no_limits, exact=exact, checkpoint=checkpoint, history=history, tokenizer=tokenizer,
        pictures=out.shows_pictures(format), observer=out.TERMINAL,
    )  # fmt: skip
    out.finish(reports, format, output, fail_on, verbose=verbose)


@parity.command(cls=ReportCommand)
def convert(
    sources: Annotated[
        list[Path], typer.Argument(metavar="IN…", help="Files of one framework, or a folder of .jsonl files.")
    ],
    output: Annotated[
        Path,
        typer.Option(
            "-o", "--output", metavar="OUT", help="Where to write: .jsonl gives JSON lines, .pt what slime loads."
        ),
    ],
    source: Annotated[
        api.RolloutFormat | None,
        typer.Option(
            "--from", help="The framework or engine that wrote them.", show_default="detected by their content"
        ),
    ] = None,
    model: Annotated[str | None, typer.Option(help="The model's name, kept with the rollouts.")] = None,
    step: Annotated[int | None, typer.Option(min=0, help="The step of the run, from 0.")] = None,
    logprobs: Annotated[api.LogprobKind | None, typer.Option(help="The distribution of the engine's logprobs.")] = None,
    temperature: Annotated[
        float | None, typer.Option(callback=finite, help="The engine's sampling temperature.")
    ] = None,
    trainer_temperature: Annotated[
        float | None, typer.Option(callback=finite, help="What the trainer divided logits by.")
    ] = None,
    trainer_version: Annotated[
        int | None, typer.Option(min=0, help="Version of the trainer's weights, as the engine counts them.")
    ] = None,
    clip_low: Annotated[
        float | None, typer.Option(callback=finite, help="The objective clips the ratio below 1 - N.")
    ] = None,
    clip_high: Annotated[
        float | None, typer.Option(callback=finite, help="The objective clips the ratio above 1 + N.")
    ] = None,
    sampled_by: Annotated[
        api.TokenSampler | None,
        typer.Option(help="Who sampled the tokens.", show_default="what the file says, else engine"),
    ] = None,
) -> None:
    """Take over rollouts of slime, miles, verl, ROLL, NeMo-RL, PipelineRL, prime-rl, or answers of vLLM and SGLang.

    No pickle is run, no torch is needed.

    Exit codes: 0 written (a message says what was left out, and the file keeps it for judge), 2 nothing could be taken over.
    """
    from ckptcheck.cli import output as out

    api.convert_rollouts(
        sources, output, source=source, model=model, step=step,
        logprobs=logprobs, temperature=temperature, trainer_temperature=trainer_temperature,
        trainer_version=trainer_version, clip_low=clip_low, clip_high=clip_high, sampled_by=sampled_by, observer=out.TERMINAL,
    )  # fmt: skip
