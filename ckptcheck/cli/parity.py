"""``ckptcheck parity``: the gap between an engine's logprobs and a trainer's. This file has what needs neither;
parity_live.py, parity_matrix.py, parity_probe.py and parity_why.py have what runs them.
"""

from __future__ import annotations

import enum
import sys
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ckptcheck.cli import localize, parity_live, parity_matrix, parity_probe, parity_why
from ckptcheck.cli.numbers import finite
from ckptcheck.cli.scan import FailOn, Format
from ckptcheck.cli.verbs import Verbs
from ckptcheck.errors import CkptcheckError

if TYPE_CHECKING:
    from collections.abc import Callable

    from ckptcheck.report import Report
    from ckptcheck.rollouts import Rollouts

LIMITS = ("max_mult_prob_error", "max_kl", "max_prob_diff", "max_abs", "max_sequence_error")
"""Options that --no-limits takes away."""

parity = typer.Typer(
    cls=Verbs,
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
    parity.command()(command)


@parity.command()
def judge(
    ctx: typer.Context,
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE…", help="Rollouts that both sides scored; several: steps of one run.")
    ],
    floor: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="What this model has with equal weights: a file of calibrate, or rollouts."),
    ] = None,
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
        float, typer.Option(min=1, callback=finite, help="How many times the floor is too much.")
    ] = 5.0,
    max_lag: Annotated[int, typer.Option(min=0, help="Versions that tokens may be older than the trainer.")] = 1,
    no_limits: Annotated[bool, typer.Option("--no-limits", help="Only the floor and what is wrong in itself.")] = False,
    tokenizer: Annotated[
        Path | None, typer.Option(metavar="DIR", help="A checkpoint whose tokenizer.json decodes the worst tokens.")
    ] = None,
    plots: Annotated[Path | None, typer.Option(metavar="DIR", help="Also draw plots (needs the extra plots).")] = None,
    format: Annotated[Format, typer.Option(help="Form of the report.")] = Format.text,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE", help="Write the report to a file.")
    ] = None,
    fail_on: Annotated[FailOn, typer.Option(help="Exit 1 for findings of this severity or graver.")] = FailOn.error,
    verbose: Annotated[bool, typer.Option("-v", "--verbose", help="Also list the rules that passed.")] = False,
) -> None:
    """Judge saved rollouts: no engine, no trainer, no GPU. The same files give the same report, byte for byte.

    Exit codes: 0 within the limits, 1 findings, 2 could not check.
    """
    from ckptcheck import pack, rollouts
    from ckptcheck.cli import output as out
    from ckptcheck.cli.idle import Given
    from ckptcheck.metrics import floor as floors
    from ckptcheck.parity.gates import Gates
    from ckptcheck.parity.judged import Judged
    from ckptcheck.parity.series import Member, Series
    from ckptcheck.run import run
    from ckptcheck.writing import keep_apart

    given = Given(ctx)
    if no_limits:
        given.refuse(LIMITS, "with --no-limits")
    if floor is None:
        given.refuse(["max_floor_multiple"], "without --floor")
    keep_apart(output, *files, floor)
    gates = Gates(max_mult_prob_error, max_kl, max_prob_diff, max_abs, max_sequence_error, max_floor_multiple, max_lag)
    if no_limits:
        gates = Gates(inf, inf, inf, None, inf, max_floor_multiple, max_lag)
    least = floors.read(floor) if floor is not None else None
    decode = _decoder(tokenizer) if tokenizer is not None else None
    if plots is not None:
        from ckptcheck.parity import plots as drawing

        drawing.demand()
    rules = pack.load()
    reports: list[Report] = []
    members: list[Member] = []
    for path in files:
        evidence = Judged(str(path), rollouts.read(path), gates, least, decode)
        reports.append(run(evidence, rules))
        if plots is not None and evidence.measured is not None:
            for made in drawing.draw(evidence, plots, path.stem if len(files) == 1 else f"{len(members)}-{path.stem}"):
                out.talk(f"drew {made}")
        elif plots is not None:
            out.talk(f"nothing to draw of {path}: no token could be compared")
        members.append(Member.of(evidence))
    if len(files) > 1:
        reports.append(run(Series.of(members, gates), rules))
    out.deliver(reports, rules, format.value, output, verbose=verbose)
    sys.stdout.flush()
    raise typer.Exit(max(report.exit_code(fail_on.value) for report in reports))


def _decoder(folder: Path) -> Callable[[int], str]:
    """Return what turns an id into text, quoted. Raises CkptcheckError where there is no tokenizer.json that can be read."""
    from tokenizers import Tokenizer

    path = folder / "tokenizer.json" if folder.is_dir() else folder
    try:
        held = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exceptions
        raise CkptcheckError(f"cannot read the tokenizer {path}: {error}") from error
    return lambda number: repr(held.decode([number], skip_special_tokens=False)) if number >= 0 else "–"


class Source(enum.StrEnum):
    """What a file was written by."""

    slime = "slime"
    slime_train = "slime-train"
    verl = "verl"
    prime_rl = "prime-rl"
    sglang = "sglang"
    vllm = "vllm"
    ckptcheck = "ckptcheck"


class Drawer(enum.StrEnum):
    """Who drew the tokens."""

    engine = "engine"
    trainer = "trainer"


class Logprobs(enum.StrEnum):
    """Of which distribution the engine's logprobs are."""

    raw = "raw"
    processed = "processed"
    unknown = "unknown"


@parity.command()
def convert(
    sources: Annotated[
        list[Path], typer.Argument(metavar="IN…", help="Files of one framework, or a folder of .jsonl files.")
    ],
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="OUT", help="Where to write: .jsonl gives JSON lines.")
    ],
    source: Annotated[
        Source | None, typer.Option("--from", help="What wrote them.", show_default="told by what is in them")
    ] = None,
    model: Annotated[str | None, typer.Option(help="The model's name, to be kept with the rollouts.")] = None,
    step: Annotated[int | None, typer.Option(min=0, help="The step of the run, from 0.")] = None,
    logprobs: Annotated[Logprobs | None, typer.Option(help="Of which distribution the engine's logprobs are.")] = None,
    temperature: Annotated[float | None, typer.Option(callback=finite, help="The engine sampled at.")] = None,
    trainer_temperature: Annotated[
        float | None, typer.Option(callback=finite, help="The trainer divided logits by.")
    ] = None,
    trainer_version: Annotated[
        int | None, typer.Option(min=0, help="Of the trainer's weights, as the engine counts them.")
    ] = None,
    sampled_by: Annotated[
        Drawer | None, typer.Option(help="Who drew the tokens.", show_default="what the file says, else engine")
    ] = None,
) -> None:
    """Take over rollouts of slime, miles, verl, prime-rl, or answers of vLLM and SGLang. No pickle is run, no torch is needed.

    Exit codes: 0 written (what was left out is said, and kept for judge), 2 nothing could be taken over.
    """
    import msgspec

    from ckptcheck.cli.output import talk
    from ckptcheck.phrase import count
    from ckptcheck.rollouts import Side, write
    from ckptcheck.rollouts.columns import SIDES
    from ckptcheck.rollouts.convert import files
    from ckptcheck.writing import keep_apart

    keep_apart(output, *files(sources))
    found, kind = _taken(sources, source)
    about = found.metadata
    changes: dict[str, object] = {"model": model, "step": step, "logprobs": logprobs and logprobs.value}
    if temperature is not None:
        changes["sampling"] = msgspec.structs.replace(about.sampling, temperature=temperature)
    told = {
        "temperature": trainer_temperature,
        "weight_version": None if trainer_version is None else str(trainer_version),
    }
    if told := {name: value for name, value in told.items() if value is not None}:
        changes["trainer"] = msgspec.structs.replace(about.trainer or Side(), **told)
    changes["sampled_by"] = sampled_by and sampled_by.value
    about = msgspec.structs.replace(about, **{name: value for name, value in changes.items() if value is not None})
    write(found.with_columns(about), output)
    left = f", {len(about.left_out):,} left out ({about.left_out[0].reason})" if about.left_out else ""
    sides = [side for side in SIDES if f"{side}_logprobs" in found]
    if "engine" not in sides:
        left += "; there are no logprobs of the engine in it" if sides else "; there are no logprobs in it"
    talk(f"{count(found.number, 'sequence')} of {kind}, {count(len(found.tokens), 'token')}, written to {output}{left}")


def _taken(sources: list[Path], source: Source | None) -> tuple[Rollouts, str]:
    from ckptcheck.rollouts import read
    from ckptcheck.rollouts.convert import convert as take
    from ckptcheck.rollouts.lines import begins_lines

    own = source is None and (sources[0].suffix == ".safetensors" or begins_lines(sources[0]))
    if not own and source is not Source.ckptcheck:
        return take(sources, source.value if source is not None else None)
    found = read(sources[0])
    if found.defects or len(sources) > 1:
        what = f"is malformed: {found.defects[0].text}" if found.defects else "is one of several; give one at a time"
        raise CkptcheckError(f"{sources[0]} {what}")
    return found, "ckptcheck"
