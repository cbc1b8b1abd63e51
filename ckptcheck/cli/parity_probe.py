"""``ckptcheck parity probe``: experiments on a real engine that tell one cause of a gap from another."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ckptcheck.cli.choices import Dtype, Mode, TrainerName
from ckptcheck.cli.idle import Given
from ckptcheck.cli.live_sides import sides
from ckptcheck.cli.parity_live import (
    EngineMode,
    EngineName,
    EnginePython,
    HeadFp32,
    Prompts,
    Source,
    SwitchList,
    Temperature,
    Timeout,
    TopK,
    TopP,
    TrainerPython,
    refuse_lengths,
)
from ckptcheck.cli.scan import FailOn, Format

DEAR = ("graphs", "inductor", "casts")
"""Probes that compile: minutes each, so only on demand."""


def probe(
    ctx: typer.Context,
    source: Source,
    engine: EngineName = "vllm",
    only: Annotated[
        list[str] | None, typer.Option("--only", metavar="PROBE", help="Just this one; may be repeated.")
    ] = None,
    without: Annotated[list[str] | None, typer.Option("--without", metavar="PROBE", help="Not this one.")] = None,
    compilation: Annotated[
        bool, typer.Option("--compilation", help="Also the probes that compile: graphs, inductor, casts.")
    ] = False,
    trainer: Annotated[
        TrainerName | None,
        typer.Option(help="Beside which trainer.", show_default="transformers, where a probe needs one"),
    ] = None,
    prompts: Prompts = None,
    length: Annotated[int, typer.Option(min=16, help="Tokens of a built-in prompt, at most.")] = 64,
    response: Annotated[int, typer.Option(min=4, help="Tokens of a response.")] = 32,
    long: Annotated[
        int, typer.Option(min=4, help="Tokens of the long response that is held against one prefill.")
    ] = 64,
    room: Annotated[int, typer.Option(min=64, help="Tokens of the longest sequence.")] = 512,
    temperature: Temperature = 0.7,
    top_p: TopP = 1.0,
    top_k: TopK = 0,
    dtype: Annotated[Dtype, typer.Option(help="In which both sides compute.")] = Dtype.float32,
    head_fp32: HeadFp32 = False,
    switch: SwitchList = None,
    engine_mode: EngineMode = Mode.plain,
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
    """Probe an engine for the known ways in which its logprobs drift from a trainer's.

    Exit codes: 0 nothing found, 1 findings, 2 could not check.
    """
    from ckptcheck import pack
    from ckptcheck.cli import output as out
    from ckptcheck.engines import registry
    from ckptcheck.engines.base import Engine
    from ckptcheck.engines.sampling import Sampling
    from ckptcheck.engines.switches import parsed
    from ckptcheck.parity.ask import Asking
    from ckptcheck.parity.probes.bench import Bench, Setup
    from ckptcheck.parity.probes.catalogue import chosen, has_experts
    from ckptcheck.parity.probes.runner import run_probes
    from ckptcheck.run import run
    from ckptcheck.trainers.base import Trainer
    from ckptcheck.writing import writable

    refuse_lengths(ctx, prompts)
    if only:
        Given(ctx).refuse(["compilation"], "with --only, which names the probes")
    registry.routes(engine)  # whether there is such an engine
    writable(output)
    probes = chosen(only or [], without or [])
    if not only and not compilation:
        probes = {name: make for name, make in probes.items() if name not in DEAR}
    rules = pack.load()
    with sides(source, timeout=timeout, engine_python=engine_python, trainer_python=trainer_python) as live:
        if not has_experts(live.ckpt):
            probes.pop("routing", None)
        asking = Asking(live.ckpt)

        own = dtype.value

        def start(setup: Setup, instead: Engine | None) -> Engine:
            """Start the engine as a probe wants it."""
            return live.engine(
                engine, dtype=setup.dtype or own, mode=engine_mode.value, length=setup.length or room,
                switches=setup.switches, instead=instead,
            )  # fmt: skip

        def beside(dtype: str, head_fp32: bool, instead: Trainer | None) -> Trainer:
            """Start the trainer."""
            out.talk(f"starting the trainer: {dtype}{', head in float32' if head_fp32 else ''}")
            return live.trainer(trainer or TrainerName.transformers, dtype=dtype, head_fp32=head_fp32, instead=instead)

        bench = Bench(
            asking.usual(length, 4, prompts), asking.vocabulary, live.folder, start_trainer=beside,
            sampling=Sampling(temperature, top_p, top_k), setup=Setup(parsed(switch or [])), ends=asking.ends,
            chat=asking.chat, length=room, response=response, long=long, timeout=timeout,
            dtype=dtype.value, head_fp32=head_fp32, say=out.talk,
        )  # fmt: skip
        report = run(run_probes(source, bench, start, probes), rules)
    out.conclude(report, rules, format.value, output, fail_on.value, verbose=verbose)
