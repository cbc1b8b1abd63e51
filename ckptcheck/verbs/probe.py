"""``ckptcheck parity probe``: experiments on an engine that tell one cause of a gap from another."""

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from msgspec import structs

from ckptcheck.errors import CkptcheckError
from ckptcheck.text.observer import SILENT, Observer
from ckptcheck.verbs.options import (
    SAMPLING,
    SEQUENCE,
    CallTimeout,
    ComputeDtype,
    EngineMode,
    EngineName,
    EnginePython,
    Floor,
    FrequencyPenalty,
    HeadFp32,
    Option,
    PresencePenalty,
    Prompts,
    Range,
    RepetitionPenalty,
    Setting,
    Source,
    Switches,
    Temperature,
    TopK,
    TopP,
    Trainer,
    TrainerPython,
    Words,
)
from ckptcheck.verbs.parameter import several, to_path
from ckptcheck.verbs.verb import verb

if TYPE_CHECKING:
    from ckptcheck.linter.report import Report
    from ckptcheck.live.runtime.trainers.base import Trainer as TrainerProcess


@verb()
def parity_probe(
    source: Source,
    *,
    engine: EngineName = "vllm",
    dtype: ComputeDtype = "float32",
    only: Annotated[
        Words,
        Option(
            "Run only this probe; repeatable.",
            metavar="PROBE",
            without=("compilation",),
            because="which names the probes",
            panel="Which probes run",
        ),
    ] = (),
    without: Annotated[
        Words, Option("Leave this probe out; repeatable.", metavar="PROBE", panel="Which probes run")
    ] = (),
    compilation: Annotated[
        bool, Option("Also run the probes that compile: graphs, inductor, casts.", panel="Which probes run")
    ] = False,
    prompts: Prompts = None,
    length: Annotated[
        int, Option("Tokens of a built-in prompt that is probed, at most.", within=Range(16), panel=SAMPLING)
    ] = 64,
    response: Annotated[int, Option("Tokens of a response.", within=SEQUENCE, panel=SAMPLING)] = 32,
    long: Annotated[
        int, Setting("Tokens of the long response that is compared with one prefill.", within=SEQUENCE)
    ] = 64,
    room: Annotated[int, Setting("Tokens of the longest sequence.", within=Range(64))] = 512,
    temperature: Temperature = 0.7,
    top_p: TopP = 1.0,
    top_k: TopK = 0,
    presence_penalty: PresencePenalty = 0.0,
    frequency_penalty: FrequencyPenalty = 0.0,
    repetition_penalty: RepetitionPenalty = 1.0,
    trainer: Trainer = "transformers",
    head_fp32: HeadFp32 = False,
    trainer_python: TrainerPython = None,
    switch: Switches = (),
    engine_mode: EngineMode = "plain",
    engine_python: EnginePython = None,
    timeout: CallTimeout = 900.0,
    floor: Floor = None,
    pictures: bool = False,
    observer: Observer = SILENT,
) -> "Report":
    """Probe an engine for the known ways in which its logprobs drift from a trainer's.

    Exit codes: 0 no findings, 1 findings, 2 could not check.
    """
    from ckptcheck.linter.rule_loader import load_rules
    from ckptcheck.live.experiments.live_session import open_live_session
    from ckptcheck.live.experiments.probes.environment import EngineSetup, ProbeEnvironment, run_probes
    from ckptcheck.live.experiments.probes.registry import COMPILING_PROBES, has_experts, select_probes
    from ckptcheck.live.experiments.record import DefaultPrompts
    from ckptcheck.live.runtime.engines import registry
    from ckptcheck.live.runtime.engines.base import Engine
    from ckptcheck.live.runtime.engines.engine_options import parse_switches
    from ckptcheck.live.runtime.engines.sampling import Sampling
    from ckptcheck.rollouts.metrics.noise_floor import read_noise_floor
    from ckptcheck.verbs.reports import build_report

    # raises CkptcheckError where there is no such engine
    registry.require_engine(engine)
    if repetition_penalty != 1 and trainer != "transformers":
        raise CkptcheckError("a repetition penalty needs logits, which the trainer transformers alone gives")
    probes = select_probes(several(only), several(without))
    wanted = [*probes] if only else []
    if not only and not compilation:
        probes = {name: make for name, make in probes.items() if name not in COMPILING_PROBES}
    noise_floor = None if floor is None else read_noise_floor(Path(floor))
    loaded = load_rules()
    with observer.stages() as begin, open_live_session(
        os.fspath(source), timeout=timeout, engine_python=to_path(engine_python), trainer_python=to_path(trainer_python),
        observer=observer,
    ) as live:  # fmt: skip
        if not has_experts(live.ckpt):
            probes.pop("routing", None)
        default_prompts = DefaultPrompts(live.ckpt)

        def start_engine(setup: EngineSetup, instead: Engine | None) -> Engine:
            """Start the engine with the set-up of a probe."""
            return live.start_engine(
                engine, dtype=setup.dtype or dtype, mode=engine_mode, context_len=setup.length or room,
                switches=setup.switches, replaces=instead,
            )  # fmt: skip

        def start_trainer(dtype: str, head_fp32: bool, instead: "TrainerProcess | None") -> "TrainerProcess":
            """Start the trainer."""
            begin(f"starting the trainer: {dtype}{', head in float32' if head_fp32 else ''}")
            return live.start_trainer(trainer, dtype=dtype, head_fp32=head_fp32, replaces=instead)

        environment = ProbeEnvironment(
            default_prompts.choose(length, 4, to_path(prompts)), default_prompts.vocabulary, live.folder,
            start_trainer=start_trainer, sampling=Sampling(
                temperature, top_p, top_k, presence_penalty=presence_penalty, frequency_penalty=frequency_penalty,
                repetition_penalty=repetition_penalty,
            ),
            setup=EngineSetup(parse_switches(list(several(switch)))), stop_tokens=default_prompts.stop_tokens,
            conversation=default_prompts.conversation, length=room, response=response, long=long, timeout=timeout, dtype=dtype,
            head_fp32=head_fp32, say=begin,
        )  # fmt: skip
        trace = run_probes(os.fspath(source), environment, start_engine, probes)
        report = build_report(replace(trace, floor=noise_floor), loaded, pictures=pictures)
        absent = {} if "routing" in probes else {"routing": "the model has no experts"}
        reasons = {**absent, **trace.unavailable}
        why = "; ".join(f"--only {name}: {reasons[name]}" for name in wanted if name in reasons)
        return structs.replace(report, error=report.error or why) if why else report
