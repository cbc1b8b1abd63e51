"""``ckptcheck parity record | score | calibrate``: rollouts of a real engine, and a real trainer's logprobs of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ckptcheck.cli.choices import Dtype, Mode, TrainerName
from ckptcheck.cli.idle import Given
from ckptcheck.cli.live_sides import sides
from ckptcheck.cli.numbers import finite
from ckptcheck.errors import CkptcheckError

if TYPE_CHECKING:
    from ckptcheck.engines.base import Engine, EngineInfo
    from ckptcheck.engines.switches import Logprobs, Switches
    from ckptcheck.trainers.base import TrainerInfo

Source = Annotated[str, typer.Argument(metavar="SOURCE", help="A Hugging Face checkpoint on this disk.")]
EngineName = Annotated[str, typer.Option("--engine", help="The inference engine.")]
EngineTp = Annotated[int, typer.Option(min=1, help="Tensor parallelism of the engine.")]
EngineMode = Annotated[
    Mode, typer.Option(help="plain keeps weights readable on a CPU; stock leaves the engine as it is.")
]
EnginePython = Annotated[
    Path | None,
    typer.Option(help="A Python of yours that has the engine.", show_default="the one installed by ckptcheck"),
]
TrainerPython = Annotated[Path | None, typer.Option(help="A Python of yours that has the trainer.")]
SwitchList = Annotated[
    list[str] | None,
    typer.Option(
        "--switch", metavar="NAME=VALUE", help="How the engine is set up: prefix_cache=off, logprobs=processed, …"
    ),
]
Prompts = Annotated[
    Path | None,
    typer.Option("--prompts", metavar="FILE", help="Prompts: JSON lines (tokens, messages, text), or plain lines."),
]
EngineDtype = Annotated[Dtype, typer.Option("--dtype", help="In which it computes.")]
Output = Annotated[Path, typer.Option("-o", "--output", metavar="FILE", help="Where to write.")]
Temperature = Annotated[float, typer.Option(min=0, callback=finite, help="Of sampling; 0: greedy.")]
TopP = Annotated[float, typer.Option(min=0, max=1, callback=finite, help="1: off.")]
TopK = Annotated[int, typer.Option(min=0, help="0: off.")]
Seed = Annotated[int, typer.Option(help="Counted up from prompt to prompt.")]
Timeout = Annotated[float, typer.Option(min=1, callback=finite, help="Seconds for any one call.")]
Tp = Annotated[int, typer.Option(min=1, help="Tensor parallelism of the trainer.")]
Pp = Annotated[int, typer.Option(min=1, help="Pipeline parallelism of the trainer.")]
Ep = Annotated[int, typer.Option(min=1, help="Expert parallelism of the trainer.")]
HeadFp32 = Annotated[bool, typer.Option("--trainer-head-fp32", help="The trainer's output head computes in float32.")]


SPARE = 2
"""Places beyond the longest sequence, which SGLang keeps to itself (see PRB001)."""


def record(
    ctx: typer.Context,
    source: Source,
    output: Output,
    engine: EngineName = "vllm",
    prompts: Prompts = None,
    number: Annotated[int, typer.Option("--number", min=1, help="Prompts to answer.")] = 8,
    length: Annotated[int, typer.Option(min=4, help="Tokens of a built-in prompt, at most.")] = 96,
    response: Annotated[int, typer.Option(min=1, help="Tokens of a response, at most.")] = 32,
    batch: Annotated[int, typer.Option(min=1, help="Prompts that are answered at once.")] = 8,
    temperature: Temperature = 1.0,
    top_p: TopP = 1.0,
    top_k: TopK = 0,
    seed: Seed = 0,
    full: Annotated[int, typer.Option(min=0, help="Response tokens of which the whole vocabulary is kept.")] = 0,
    routing: Annotated[bool, typer.Option("--routing", help="Also keep which experts tokens went to.")] = False,
    ignore_eos: Annotated[bool, typer.Option("--ignore-eos", help="Go on past end tokens.")] = False,
    step: Annotated[int | None, typer.Option(min=0, help="Of the training run, to be written down.")] = None,
    dtype: EngineDtype = Dtype.float32,
    switch: SwitchList = None,
    engine_mode: EngineMode = Mode.plain,
    engine_tp: EngineTp = 1,
    engine_python: EnginePython = None,
    timeout: Timeout = 900.0,
) -> None:
    """Have an engine answer prompts, and write down tokens and logprobs. No trainer is loaded."""
    from ckptcheck.cli import output as out
    from ckptcheck.engines import registry
    from ckptcheck.engines.sampling import Sampling
    from ckptcheck.engines.switches import parsed
    from ckptcheck.parity.ask import Asking
    from ckptcheck.parity.full import with_full
    from ckptcheck.parity.record import record as recorded
    from ckptcheck.parity.routes import with_routes
    from ckptcheck.parity.scoring import due
    from ckptcheck.rollouts import Metadata, write
    from ckptcheck.writing import keep_apart, writable

    refuse_lengths(ctx, prompts)
    keep_apart(output, prompts, Path(source))
    registry.routes(engine)  # whether there is such an engine
    writable(output)
    switches = parsed(switch or [])
    sampling = Sampling(temperature, top_p, top_k, response, seed, ignore_eos)
    with sides(source, timeout=timeout, engine_python=engine_python) as live:
        asking = Asking(live.ckpt)
        asked = asking.usual(length, number, prompts)
        room = max(map(len, asked)) + response + SPARE
        out.talk(f"starting {engine}")
        running = live.engine(
            engine, dtype=dtype.value, ranks=engine_tp, mode=engine_mode.value, length=room, together=max(8, batch),
            switches=_wide(switches, batch),
        )  # fmt: skip
        try:
            logprobs: Logprobs = _told_switches(running, switches)
            about = Metadata(
                model=source, step=step, logprobs=logprobs, vocabulary=asking.vocabulary, max_model_len=room
            )
            with out.progress_bar("answering", bytewise=False) as advance:
                found = recorded(running, asked, sampling, about, batch=batch, timeout=timeout, advance=advance)
            if full:
                heat = due(found.metadata)
                found = with_full(found, "engine", running, live.folder, number=full, temperature=heat)
            if routing:
                found = with_routes(found, "engine", running)
                if "engine_routing" not in found:
                    out.talk(f"{engine} does not tell which experts tokens go to")
        finally:
            running.close()
    write(found, output)
    out.talk(f"{found.number} responses, {len(found.tokens):,} tokens: {output}")


def score(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Rollouts, as record or convert wrote them.")],
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="The checkpoint that scores them.")],
    output: Output,
    trainer: Annotated[TrainerName, typer.Option(help="What scores.")] = TrainerName.transformers,
    temperature: Annotated[
        float | None,
        typer.Option(
            min=1e-6, callback=finite, help="By which logits are divided.", show_default="that of the engine's logprobs"
        ),
    ] = None,
    trainer_version: Annotated[
        int | None, typer.Option(min=0, help="Of its weights, as the engine counts them: what lag is counted from.")
    ] = None,
    tp: Tp = 1,
    pp: Pp = 1,
    ep: Ep = 1,
    dtype: EngineDtype = Dtype.float32,
    head_fp32: HeadFp32 = False,
    tokens: Annotated[
        int, typer.Option(min=1, help="Tokens that the trainer is handed at once, padding included.")
    ] = 8192,
    trainer_python: TrainerPython = None,
    timeout: Timeout = 900.0,
) -> None:
    """Have a trainer score rollouts, and write them with its logprobs. No engine is loaded."""
    from ckptcheck.cli import output as out
    from ckptcheck.parity.scoring import score as scored
    from ckptcheck.rollouts import read, write
    from ckptcheck.trainers.layout import Layout
    from ckptcheck.writing import keep_apart, writable

    keep_apart(output, file, Path(source))
    writable(output)
    rollouts = read(file)
    if rollouts.defects:
        raise CkptcheckError(
            f"{file} cannot be scored: {rollouts.defects[0].text}", hint=f"ckptcheck parity judge {file}"
        )
    with sides(source, timeout=timeout, trainer_python=trainer_python) as live:
        out.talk(f"starting {trainer.value}")
        held = live.trainer(trainer, dtype=dtype.value, head_fp32=head_fp32, layout=Layout(tp=tp, pp=pp, ep=ep))
        try:
            with out.progress_bar("scoring", bytewise=False) as advance:
                found = scored(
                    rollouts, held, temperature=temperature, version=trainer_version, tokens=tokens,
                    folder=live.folder, advance=advance,
                )  # fmt: skip
        finally:
            held.close()
    write(found, output)
    out.talk(f"{found.number} sequences scored: {output}")


def calibrate(
    ctx: typer.Context,
    source: Source,
    output: Output,
    engine: EngineName = "vllm",
    trainer: Annotated[TrainerName, typer.Option(help="What scores.")] = TrainerName.transformers,
    prompts: Prompts = None,
    number: Annotated[int, typer.Option("--number", min=1, help="Prompts.")] = 8,
    length: Annotated[int, typer.Option(min=4, help="Tokens of a built-in prompt, at most.")] = 96,
    response: Annotated[int, typer.Option(min=1, help="Tokens of a response.")] = 32,
    dtype: EngineDtype = Dtype.float32,
    trainer_dtype: Annotated[
        Dtype | None, typer.Option(help="In which the trainer computes.", show_default="as --dtype")
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
) -> None:
    """Measure the floor of a model: the gap that the same weights have on both sides, and each side with itself."""
    from rich.console import Console

    from ckptcheck.cli import output as out
    from ckptcheck.engines import registry
    from ckptcheck.engines.switches import parsed
    from ckptcheck.parity.ask import Asking
    from ckptcheck.parity.calibrate import calibrate as measured
    from ckptcheck.reporters import tables
    from ckptcheck.trainers.layout import Layout
    from ckptcheck.writing import keep_apart, writable

    refuse_lengths(ctx, prompts)
    registry.routes(engine)  # whether there is such an engine
    keep_apart(output, prompts, Path(source))
    writable(output)
    switches = parsed(switch or [])
    with sides(source, timeout=timeout, engine_python=engine_python, trainer_python=trainer_python) as live:
        asking = Asking(live.ckpt)
        asked = asking.usual(length, number, prompts)
        room = max(map(len, asked)) + response + SPARE
        out.talk(f"starting {engine} and {trainer.value}")
        running = live.engine(
            engine, dtype=dtype.value, ranks=engine_tp, mode=engine_mode.value, length=room, together=8,
            switches=_wide(switches, 8),
        )  # fmt: skip
        try:
            _told_switches(running, switches)
            held = live.trainer(
                trainer, dtype=(trainer_dtype or dtype).value, head_fp32=head_fp32, layout=Layout(tp=tp, pp=pp, ep=ep)
            )
            try:
                noise = measured(running, held, asked, response=response, say=out.talk)
                noise.write(
                    output,
                    model=source,
                    vocabulary=asking.vocabulary,
                    engine=_named(running.info),
                    trainer=_named(held.info),
                )
            finally:
                held.close()
        finally:
            running.close()
    tables.write(Console(), noise.section())


def refuse_lengths(ctx: typer.Context, prompts: Path | None) -> None:
    """Refuse a length of built-in prompts where the user's own are taken whole."""
    if prompts is not None:
        Given(ctx).refuse(["length"], "with --prompts: a file's prompts are taken whole")


def _wide(switches: Switches, batch: int) -> Switches:
    """Have an engine compute a whole batch at once."""
    return replace(switches, sequences=max(8, batch)) if switches.sequences is None else switches


def _told_switches(running: Engine, switches: Switches) -> Logprobs:
    """Say which switches the engine did not take, and return of which distribution its logprobs are after all."""
    from ckptcheck.cli import output as out

    for name, why in running.ignored.items():
        out.talk(f"{name}: {why}")
    asked = switches.logprobs or "raw"
    return asked if "logprobs" not in running.ignored else "raw" if asked == "processed" else "processed"


def _named(info: EngineInfo | TrainerInfo) -> str:
    return f"{info.name} {info.version} {info.dtype}"
