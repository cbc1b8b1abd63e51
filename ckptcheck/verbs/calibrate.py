"""``ckptcheck parity calibrate``: measures the noise floor of a model."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

from ckptcheck.text.observer import SILENT, Observer
from ckptcheck.verbs.options import (
    CallTimeout,
    ComputeDtype,
    EngineMode,
    EngineName,
    EnginePython,
    EngineTp,
    HeadFp32,
    PromptCount,
    PromptLength,
    Prompts,
    ResponseLength,
    RolloutOutput,
    Source,
    Switches,
    Trainer,
    TrainerDtype,
    TrainerEp,
    TrainerPp,
    TrainerPython,
    TrainerTp,
)
from ckptcheck.verbs.parameter import several, to_path
from ckptcheck.verbs.verb import verb

if TYPE_CHECKING:
    from ckptcheck.live.experiments.calibrate import FloorMeasurement


@verb()
def calibrate_floor(
    source: Source,
    output: RolloutOutput = None,
    *,
    engine: EngineName = "vllm",
    trainer: Trainer = "transformers",
    prompts: Prompts = None,
    number: PromptCount = 8,
    length: PromptLength = 96,
    response: ResponseLength = 32,
    dtype: ComputeDtype = "float32",
    trainer_dtype: TrainerDtype = None,
    head_fp32: HeadFp32 = False,
    tp: TrainerTp = 1,
    pp: TrainerPp = 1,
    ep: TrainerEp = 1,
    switch: Switches = (),
    engine_mode: EngineMode = "plain",
    engine_tp: EngineTp = 1,
    engine_python: EnginePython = None,
    trainer_python: TrainerPython = None,
    timeout: CallTimeout = 900.0,
    observer: Observer = SILENT,
) -> "FloorMeasurement":
    """Measure the noise floor of a model: the gap that equal weights have between both sides, and of each side with itself."""
    from ckptcheck.live.experiments.calibrate import calibrate
    from ckptcheck.live.experiments.live_session import describe_side, open_live_session, with_batch_size
    from ckptcheck.live.experiments.record import DefaultPrompts
    from ckptcheck.live.runtime.engines import registry
    from ckptcheck.live.runtime.engines.engine_options import parse_switches
    from ckptcheck.live.runtime.engines.sizing import SPARE_TOKENS
    from ckptcheck.live.runtime.trainers.layout import ParallelLayout
    from ckptcheck.text.file_io import require_output_apart, require_writable

    # raises CkptcheckError where there is no such engine
    registry.require_engine(engine)
    require_output_apart(to_path(output), to_path(prompts), Path(source))
    require_writable(to_path(output))
    switches = parse_switches(list(several(switch)))
    with open_live_session(
        os.fspath(source), timeout=timeout, engine_python=to_path(engine_python), trainer_python=to_path(trainer_python),
        observer=observer,
    ) as live:  # fmt: skip
        default_prompts = DefaultPrompts(live.ckpt)
        prompt_tokens = default_prompts.choose(length, number, to_path(prompts))
        context_len = max(map(len, prompt_tokens)) + response + SPARE_TOKENS
        with observer.phase(f"starting {engine}"):
            running = live.start_engine(
                engine, dtype=dtype, ranks=engine_tp, mode=engine_mode, context_len=context_len, concurrent_sequences=8,
                switches=with_batch_size(switches, 8),
            )  # fmt: skip
        try:
            live.log_ignored_switches(running)
            layout = ParallelLayout(tp=tp, pp=pp, ep=ep)
            with observer.phase(f"starting {trainer}"):
                scorer = live.start_trainer(trainer, dtype=trainer_dtype or dtype, head_fp32=head_fp32, layout=layout)
            try:
                with observer.stages() as begin:
                    measurement = calibrate(running, scorer, prompt_tokens, response=response, say=begin)
                if output is not None:
                    measurement.write(
                        Path(output), model=os.fspath(source), vocabulary=default_prompts.vocabulary,
                        engine=describe_side(running.info), trainer=describe_side(scorer.info),
                    )  # fmt: skip
            finally:
                scorer.close()
        finally:
            running.close()
    return measurement
