"""``ckptcheck parity why``: the layer of the cause of a gap, by experiments that take one cause away at a time."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ckptcheck.cli.choices import Dtype, Mode, TrainerName
from ckptcheck.cli.idle import Given
from ckptcheck.cli.live_sides import Sides, sides
from ckptcheck.cli.parity_live import (
    EngineMode,
    EnginePython,
    EngineTp,
    Ep,
    HeadFp32,
    Pp,
    SwitchList,
    Timeout,
    Tp,
    TrainerPython,
)
from ckptcheck.cli.scan import FailOn, Format
from ckptcheck.errors import CkptcheckError

if TYPE_CHECKING:
    from ckptcheck.attribution import engine_side, trainer_side
    from ckptcheck.attribution.ladder import Climb
    from ckptcheck.attribution.live import Held
    from ckptcheck.engines.base import Engine
    from ckptcheck.rollouts import Rollouts
    from ckptcheck.rollouts.metadata import Side
    from ckptcheck.trainers.base import Trainer

NO_ENGINE = "none"
OF_THE_ENGINE = ("engine_source", "dtype", "switch", "engine_mode", "engine_tp", "engine_python")
OF_SOURCE = (
    "engine", *OF_THE_ENGINE, "trainer", "trainer_dtype", "head_fp32", "tp", "pp", "ep", "trainer_python", "timeout",
)  # fmt: skip
"""They say how the two sides are run."""
FLOORS = {"float32": 1e-4}
COARSE = 5e-3
"""Mean |Δ| in nats that such dtypes on both sides usually have at most; `parity calibrate` measures a model's own."""
LEAST = 1e-7
"""A floor of 0 would make every gap infinitely many times the floor."""


def why(
    ctx: typer.Context,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Rollouts: as record, score or convert wrote them.")],
    source: Annotated[
        str | None,
        typer.Argument(metavar="SOURCE", help="The trainer's checkpoint on this disk; without it nothing is run."),
    ] = None,
    engine: Annotated[
        str, typer.Option("--engine", help="The inference engine; none: only the trainer runs.")
    ] = "vllm",
    engine_source: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="What the engine loads, where it is another checkpoint than SOURCE."),
    ] = None,
    trainer: Annotated[TrainerName, typer.Option(help="What scores.")] = TrainerName.transformers,
    floor: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="What this model has with equal weights: a floor, or rollouts.",
            show_default="by dtype",
        ),
    ] = None,
    dtype: Annotated[
        Dtype | None, typer.Option("--dtype", help="In which the engine computes.", show_default="as recorded")
    ] = None,
    trainer_dtype: Annotated[
        Dtype | None, typer.Option(help="In which the trainer computes.", show_default="as recorded")
    ] = None,
    head_fp32: HeadFp32 = False,
    tp: Tp = 1,
    pp: Pp = 1,
    ep: Ep = 1,
    switch: SwitchList = None,
    engine_mode: EngineMode = Mode.plain,
    engine_tp: EngineTp = 1,
    engine_python: EnginePython = None,
    trainer_python: TrainerPython = None,
    timeout: Timeout = 900.0,
    format: Annotated[Format, typer.Option(help="Form of the report.")] = Format.text,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE", help="Write the report to a file.")
    ] = None,
    fail_on: Annotated[FailOn, typer.Option(help="Exit 1 for findings of this severity or graver.")] = FailOn.error,
    verbose: Annotated[bool, typer.Option("-v", "--verbose", help="Also list the rules that passed.")] = False,
) -> None:
    """Name the layer of a gap's cause (semantics, weights, path, precision, routing, objective), and the experiment that shows it.

    FILE alone is explained as far as what is recorded allows. With SOURCE a trainer and an engine score the same tokens
    again, with one thing changed at a time.

    Exit codes: 0 no gap, or one that is no error, 1 findings, 2 could not check.
    """
    from ckptcheck import pack
    from ckptcheck.attribution.ladder import climb
    from ckptcheck.attribution.recorded import Recorded
    from ckptcheck.attribution.rungs import RUNGS
    from ckptcheck.attribution.trace import Attribution
    from ckptcheck.cli import output as out
    from ckptcheck.rollouts import read
    from ckptcheck.run import run
    from ckptcheck.writing import keep_apart, writable

    given = Given(ctx)
    if source is None:
        given.refuse(OF_SOURCE, "without SOURCE: nothing is run", "name the trainer's checkpoint after FILE")
    if engine == NO_ENGINE:
        given.refuse(OF_THE_ENGINE, "with --engine none: no engine is run")
    writable(output)
    keep_apart(output, file, floor)
    rollouts = read(file)
    if rollouts.defects:
        raise CkptcheckError(f"{file} is malformed: {rollouts.defects[0].text}", hint=f"ckptcheck parity judge {file}")
    if "engine_logprobs" not in rollouts:
        raise CkptcheckError(f"{file} has no logprobs of an engine")
    least = _measured(floor) if floor is not None else None
    rules = pack.load()
    if source is None:
        if "trainer_logprobs" not in rollouts:
            raise CkptcheckError(
                f"{file} has no logprobs of a trainer", hint=f"ckptcheck parity why {file} SOURCE scores it first"
            )
        found = climb(Recorded(rollouts), RUNGS, least or _assumed(rollouts))
    else:
        with sides(source, timeout=timeout, engine_python=engine_python, trainer_python=trainer_python) as live:
            rollouts, found = _climbed(
                live, rollouts, least, (engine, engine_source, engine_mode.value, engine_tp, switch or []), dtype,
                (trainer, head_fp32, (tp, pp, ep)), trainer_dtype,
            )  # fmt: skip
    about = rollouts.metadata
    names = _name(about.engine) or "engine", _name(about.trainer) or "trainer"
    report = run(Attribution(str(file), found, names, measured=least is not None), rules)
    out.conclude(report, rules, format.value, output, fail_on.value, verbose=verbose)


def _climbed(
    live: Sides,
    rollouts: Rollouts,
    least: float | None,
    engine: tuple[str, Path | None, str, int, list[str]],
    dtype: Dtype | None,
    trainer: tuple[TrainerName, bool, tuple[int, int, int]],
    trainer_dtype: Dtype | None,
) -> tuple[Rollouts, Climb]:
    """Score what is not scored, and climb with both sides."""
    import numpy as np

    from ckptcheck.attribution.ladder import climb
    from ckptcheck.attribution.live import Held, Live
    from ckptcheck.attribution.rungs import RUNGS
    from ckptcheck.cli import output as out
    from ckptcheck.host.patience import within
    from ckptcheck.parity.scoring import score
    from ckptcheck.trainers.layout import Layout

    local = live.ckpt.source.local
    if local is None or live.ckpt.config is None:
        raise CkptcheckError(f"{live.source} is not on this disk, or has no config.json")
    about = rollouts.metadata
    own = (dtype.value if dtype else None) or _dtype(about.engine) or "float32"
    theirs = (trainer_dtype.value if trainer_dtype else None) or _dtype(about.trainer) or own
    name, head_fp32, layout = trainer
    started: list[Trainer] = []

    def start(other: str | None, head: bool, instead: Trainer | None) -> Trainer:
        if started and (other, head) == (None, False):
            return started.pop()
        instead = instead or (started.pop() if started else None)
        out.talk(f"starting {name.value}{_words(other, head)}")
        return live.trainer(
            name, dtype=other or theirs, head_fp32=head or head_fp32, layout=Layout(*layout), instead=instead
        )

    begin: trainer_side.Start = start
    if "trainer_logprobs" not in rollouts:
        held = start(None, False, None)
        try:
            with within(live.timeout), out.progress_bar("scoring", bytewise=False) as advance:
                rollouts = score(rollouts, held, folder=live.folder, advance=advance)
        except BaseException:
            held.close()
            raise
        started.append(held)
    lengths = np.diff(rollouts.starts)
    served = _engine(live, engine, own, int(lengths.max()) + 1 if len(lengths) else 1)
    try:
        with Live(
            rollouts, live.folder, engine=served, trainer=(begin, Held(local, live.ckpt.config.value)),
            timeout=live.timeout,
        ) as world:  # fmt: skip
            found = climb(world, RUNGS, least or _assumed(rollouts), say=lambda rung: out.talk(f"the ladder: {rung}"))
    finally:
        for left in started:
            left.close()
    return rollouts, found


def _engine(
    live: Sides, asked: tuple[str, Path | None, str, int, list[str]], dtype: str, length: int
) -> tuple[engine_side.Start, Held] | None:
    """Return how the engine is started, and what it holds."""
    from dataclasses import replace

    from ckptcheck.attribution.live import Held
    from ckptcheck.checkpoint.open import open_checkpoint
    from ckptcheck.cli import output as out
    from ckptcheck.engines import registry
    from ckptcheck.engines.switches import parsed

    name, folder, mode, ranks, switch = asked
    if name == NO_ENGINE:
        return None
    registry.routes(name)  # whether there is such an engine
    ckpt = live.ckpt if folder is None else open_checkpoint(str(folder))
    place = ckpt.source.local
    if place is None or ckpt.config is None:
        raise CkptcheckError(f"{folder or live.source} has no config.json, so no engine loads it")
    own = place
    switches = parsed(switch)
    if switches.sequences is None:
        switches = replace(switches, sequences=8)

    def start(other: Path | None, other_dtype: str | None, head: bool, instead: Engine | None) -> Engine:
        out.talk(f"starting {name}{_words(other_dtype, head, other)}")
        return registry.start(
            name, other or own, dtype=other_dtype or dtype, ranks=ranks, mode=mode, length=length,
            switches=replace(switches, head_fp32=True) if head else switches, instead=instead,
            python=live.engine_python, scratch=(live.folder, live.exchange.folder),
        )  # fmt: skip

    return start, Held(own, ckpt.config.value)


def _words(dtype: str | None, head: bool, folder: Path | None = None) -> str:
    said = (
        [f"in {dtype}"] * bool(dtype) + ["with a float32 head"] * head + [f"({folder and folder.name})"] * bool(folder)
    )
    return " " + " ".join(said) if said else ""


def _measured(path: Path) -> float:
    from ckptcheck.metrics import floor as floors

    least = floors.read(path).metrics.get("abs_mean")
    if least is None:
        raise CkptcheckError(f"{path} has no abs_mean", hint="ckptcheck parity calibrate writes one")
    return max(least, LEAST)


def _assumed(rollouts: Rollouts) -> float:
    about = rollouts.metadata
    return max(FLOORS.get(_dtype(side) or "", COARSE) for side in (about.engine, about.trainer))


def _dtype(side: Side | None) -> str | None:
    return side.dtype if side is not None and side.dtype in {each.value for each in Dtype} else None


def _name(side: Side | None) -> str:
    return " ".join(part for part in (side.name, side.dtype) if part) if side is not None else ""
