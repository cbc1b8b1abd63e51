"""``ckptcheck parity matrix``: NeMo-RL's table, measured on real engines and trainers."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from ckptcheck.cli.choices import Dtype, Mode, TrainerName
from ckptcheck.cli.idle import Given
from ckptcheck.cli.live_sides import Sides, sides
from ckptcheck.cli.numbers import finite
from ckptcheck.cli.parity_live import (
    EngineMode,
    EnginePython,
    EngineTp,
    Ep,
    HeadFp32,
    Pp,
    Seed,
    Source,
    SwitchList,
    Temperature,
    Timeout,
    TopK,
    TopP,
    Tp,
    TrainerPython,
)
from ckptcheck.cli.scan import FailOn, Format
from ckptcheck.errors import CkptcheckError

if TYPE_CHECKING:
    from ckptcheck.checkpoint.checkpoint import Checkpoint
    from ckptcheck.parity.matrix.cells import Plan
    from ckptcheck.parity.matrix.trace import MatrixTrace


def matrix(
    ctx: typer.Context,
    source: Source,
    lengths: Annotated[str, typer.Option(help="Tokens of prompt and response.")] = "100",
    data: Annotated[
        str, typer.Option(help="real: text in the chat template; synthetic: made-up ids.")
    ] = "real,synthetic",
    decoding: Annotated[str, typer.Option(help="greedy, sampling.")] = "greedy,sampling",
    batch: Annotated[str, typer.Option(help="Requests at once.")] = "1,8",
    pairs: Annotated[str, typer.Option(help="trainer:engine, …")] = "transformers:vllm",
    directions: Annotated[str, typer.Option(help="Who draws the tokens: engine, trainer.")] = "engine,trainer",
    repeats: Annotated[int, typer.Option(min=1, help="Runs of every cell.")] = 2,
    response: Annotated[int, typer.Option(min=1, help="Tokens of a response.")] = 16,
    sequences: Annotated[int, typer.Option(min=1, help="Sequences of a cell, at least.")] = 4,
    temperature: Temperature = 1.0,
    top_p: TopP = 1.0,
    top_k: TopK = 0,
    seed: Seed = 0,
    calibrate: Annotated[
        bool, typer.Option("--calibrate", help="Measure the floor first, and say gaps as multiples of it.")
    ] = False,
    floor: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A file of calibrate, or rollouts with equal weights.")
    ] = None,
    tp: Tp = 1,
    pp: Pp = 1,
    ep: Ep = 1,
    engine_tp: EngineTp = 1,
    dtype: Annotated[Dtype, typer.Option(help="In which both sides compute.")] = Dtype.float32,
    head_fp32: HeadFp32 = False,
    switch: SwitchList = None,
    engine_mode: EngineMode = Mode.plain,
    engine_python: EnginePython = None,
    trainer_python: TrainerPython = None,
    max_mult_prob_error: Annotated[
        float, typer.Option(min=1, callback=finite, help="Limit of a cell's mean exp|Δ|.")
    ] = 1.05,
    max_floor_multiple: Annotated[
        float, typer.Option(min=1, callback=finite, help="How many times the floor is too much.")
    ] = 5.0,
    resume: Annotated[
        Path | None, typer.Option(metavar="FILE", help="What is measured is kept here; a later run goes on from it.")
    ] = None,
    markdown: Annotated[Path | None, typer.Option(metavar="FILE", help="Also write the table in Markdown.")] = None,
    timeout: Timeout = 900.0,
    format: Annotated[Format, typer.Option(help="Form of the report.")] = Format.text,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE", help="Write the report to a file.")
    ] = None,
    fail_on: Annotated[FailOn, typer.Option(help="Exit 1 for findings of this severity or graver.")] = FailOn.error,
    verbose: Annotated[bool, typer.Option("-v", "--verbose", help="Also list the rules that passed.")] = False,
) -> None:
    """Measure the gap between trainers and engines over lengths, data, decoding and batches, with the variance over runs.

    Exit codes: 0 all cells are within the gates, 1 findings, 2 could not check.
    """
    from ckptcheck import pack
    from ckptcheck.cli import output as out
    from ckptcheck.engines.registry import ENGINES
    from ckptcheck.engines.switches import parsed
    from ckptcheck.metrics import floor as floors
    from ckptcheck.parity.gates import Gates
    from ckptcheck.parity.matrix import cells
    from ckptcheck.parity.prompts import Data
    from ckptcheck.run import run
    from ckptcheck.writing import keep_apart, replace_file, writable

    if calibrate and floor is not None:
        raise CkptcheckError("--calibrate measures the floor and --floor reads it: give one of the two")
    for file in (output, markdown, resume):
        keep_apart(file, floor, Path(source))
        writable(file)
    written = [file.resolve() for file in (output, markdown, resume) if file is not None]
    if len(set(written)) < len(written):
        raise CkptcheckError("-o, --markdown and --resume are to be files of their own")
    if parsed(switch or []).logprobs == "processed":
        raise CkptcheckError(
            "the matrix compares the models' own logprobs, not processed ones",
            hint="ckptcheck parity probe --only semantics",
        )
    given = Given(ctx)
    if not calibrate and floor is None:
        given.refuse(["max_floor_multiple"], "without --floor or --calibrate")
    least = floors.read(floor).metrics.get("mult_prob_error") if floor is not None else None
    plan = cells.Plan(
        lengths=tuple(sorted({_number(text, "--lengths") for text in _list(lengths)})),
        data=cast(tuple[Data, ...], _words(data, cells.DATA, "--data")),
        decoding=cast(tuple[cells.Decoding, ...], _words(decoding, cells.DECODING, "--decoding")),
        batches=tuple(sorted({_number(text, "--batch") for text in _list(batch)})),
        pairs=cells.pairs(_list(pairs), list(ENGINES)),
        directions=cast(tuple[cells.Direction, ...], _words(directions, ("engine", "trainer"), "--directions")),
        repeats=repeats, response=response, sequences=sequences, temperature=temperature, top_p=top_p, top_k=top_k, seed=seed,
    )  # fmt: skip
    if "megatron" not in {trainer for trainer, _ in plan.pairs}:
        given.refuse(["tp", "pp", "ep"], "without a pair that has megatron: other trainers have one process")
    if plan.decoding == ("greedy",):
        given.refuse(["temperature", "top_p", "top_k"], "with --decoding greedy")
    if plan.temperature == 0 and "sampling" in plan.decoding:
        raise CkptcheckError("--temperature 0 is greedy decoding, and no sampling", hint="--decoding greedy")
    rules = pack.load()
    setting: dict[str, object] = {
        "tp": tp,
        "pp": pp,
        "ep": ep,
        "engine_tp": engine_tp,
        "dtype": dtype.value,
        "head_fp32": head_fp32,
    }
    setting |= {"switches": sorted(switch or []), "mode": engine_mode.value}
    with sides(source, timeout=timeout, engine_python=engine_python, trainer_python=trainer_python) as live:
        trace = _measured(live, plan, setting, resume, calibrate)
    trace = replace(trace, gates=Gates(mult_prob_error=max_mult_prob_error, floor=max_floor_multiple))
    if least is not None:
        trace = replace(trace, floor=dict.fromkeys(trace.pairs, least))
    report = run(trace, rules)
    if markdown is not None:
        replace_file(markdown, trace.markdown().encode())
    out.conclude(report, rules, format.value, output, fail_on.value, verbose=verbose)


def _measured(live: Sides, plan: Plan, setting: Mapping[str, object], resume: Path | None, floors: bool) -> MatrixTrace:
    """Start every side once, and measure."""
    from ckptcheck.cli import output as out
    from ckptcheck.engines.base import Engine, EngineInfo
    from ckptcheck.engines.switches import parsed
    from ckptcheck.host.trouble import HostDied, HostHung, VerbError
    from ckptcheck.parity.ask import Asking
    from ckptcheck.parity.calibrate import TITLES, calibrate
    from ckptcheck.parity.matrix.cells import left_out
    from ckptcheck.parity.matrix.ledger import Ledger
    from ckptcheck.parity.matrix.measure import Measurement
    from ckptcheck.parity.matrix.trace import MatrixTrace
    from ckptcheck.trainers.base import Trainer, TrainerInfo
    from ckptcheck.trainers.layout import Layout

    asking = Asking(live.ckpt)
    plan, left = left_out(plan, asking.context, asking.unreadable)
    about = {"source": live.source, "plan": plan.as_dict(), "setting": setting}
    ledger = Ledger(resume, about if resume is None else about | {"weights": _weights(live.ckpt)})
    engines: dict[str, Engine] = {}
    trainers: dict[str, Trainer] = {}
    floor: dict[str, float] = {}
    more = []
    broken: dict[str, str] = {}
    switches = parsed(cast(list[str], setting["switches"]))
    if switches.sequences is None:  # else an engine computes a large batch in several small ones
        switches = replace(switches, sequences=max(8, *plan.batches))
    with ExitStack() as stack:
        for name in dict.fromkeys(engine for _, engine in plan.pairs):
            out.talk(f"starting {name}")
            engines[name] = live.engine(
                name, dtype=str(setting["dtype"]), ranks=cast(int, setting["engine_tp"]), mode=str(setting["mode"]),
                length=min(max(plan.lengths) + 8, asking.context or 1 << 30), together=max(8, *plan.batches), switches=switches,
            )  # fmt: skip
            stack.callback(engines[name].close)
            left |= {f"{name} {switch}": why for switch, why in engines[name].ignored.items()}
        for name in dict.fromkeys(trainer for trainer, _ in plan.pairs):
            out.talk(f"starting {name}")
            layout = Layout(tp=cast(int, setting["tp"]), pp=cast(int, setting["pp"]), ep=cast(int, setting["ep"]))
            trainers[name] = live.trainer(
                TrainerName(name), dtype=str(setting["dtype"]), head_fp32=bool(setting["head_fp32"]),
                layout=layout if name == "megatron" else None,
            )  # fmt: skip
            stack.callback(trainers[name].close)
        infos: list[EngineInfo | TrainerInfo] = [
            *(held.info for held in trainers.values()),
            *(running.info for running in engines.values()),
        ]
        versions = [f"{info.name} {info.version}" for info in infos]
        ledger.met(versions)
        data = plan.data[0]
        try:
            for trainer, engine in plan.pairs if floors else ():
                prompts = asking.prompts(min(plan.lengths) - plan.response, data, 8)
                out.talk(f"the floor of {trainer}:{engine}")
                noise = calibrate(engines[engine], trainers[trainer], prompts, response=plan.response, say=out.talk)
                if noise.lost:
                    why = f"logprobs of {TITLES[noise.lost[0]]} are not finite"
                    left[f"the floor of {trainer}:{engine}"] = why
                else:
                    floor[f"{trainer}:{engine}"] = max(each.mult_prob_error for each in noise.gaps.values())
                more.append(noise.section(f"{trainer}:{engine}"))
            Measurement(plan, engines, trainers, asking.prompts, ledger, timeout=live.timeout, say=out.talk).run()
        except (HostDied, HostHung, VerbError) as error:
            broken["the matrix"] = str(error)
    return MatrixTrace(
        live.source, ledger.done, left, tuple(versions), str(setting["dtype"]), floor, tuple(more), broken
    )


def _weights(ckpt: Checkpoint) -> str:
    """Return one digest of all weights, so that those of another step are not taken for these."""
    import xxhash

    from ckptcheck.values.digest import digests
    from ckptcheck.values.stream import streams_of

    found = digests(streams_of(ckpt))
    return xxhash.xxh3_128_hexdigest(repr(sorted(found.items())).encode())


def _list(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _number(text: str, option: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text)):
        raise CkptcheckError(f"{option} takes whole numbers, not {text}")
    return int(text)


def _words(text: str, known: tuple[str, ...], option: str) -> tuple[str, ...]:
    found = tuple(dict.fromkeys(_list(text)))
    if not found or set(found) - set(known):
        raise CkptcheckError(f"{option} is some of {', '.join(known)}, not {text or 'nothing'}")
    return found
