"""``ckptcheck refit``: syncs a trainer's weights into a running engine, and proves that it computes with them."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from ckptcheck.errors import CkptcheckError
from ckptcheck.live.runtime.engines.transports import describe_transports
from ckptcheck.text.observer import SILENT, Observer
from ckptcheck.verbs.options import (
    FROM_ONE,
    FROM_ZERO,
    KEPT,
    TRIAL,
    CheckLogprobs,
    CheckWeights,
    ComputeDtype,
    DespiteErrors,
    Dtype,
    EngineGpus,
    EngineMode,
    EngineName,
    EnginePython,
    EngineTp,
    HfConfig,
    KeepCheckpoints,
    Option,
    PhaseTimeouts,
    Range,
    Setting,
    Source,
    StrPath,
    Switches,
    Trainer,
    TrainerDevice,
    TrainerEp,
    TrainerGpus,
    TrainerPp,
    TrainerPython,
    TrainerTp,
    Words,
)
from ckptcheck.verbs.parameter import Given, reject_checks, reject_phases, several, to_path
from ckptcheck.verbs.verb import verb

if TYPE_CHECKING:
    from ckptcheck.linter.report import Report


def reject_unused(given: Given) -> None:
    """Reject options about steps that are not made, and about scores that are not taken."""
    reject_checks(given)
    if not given["steps"]:
        given.reject(["perturb"], "with --steps 0: it takes the place of a step")
        given.reject(["sleep_level"], "with --steps 0: the engine sleeps while the trainer steps")
        reject_phases(given, ["step"], "with --steps 0")
    if not given["check_logprobs"]:
        given.reject(["fast", "clear_cache"], "with --no-check-logprobs: nothing is scored")
        reject_phases(given, ["score"], "with --no-check-logprobs: nothing is scored")


@verb(reject_unused)
def refit(
    source: Source,
    *,
    engine: EngineName = "vllm",
    trainer: Trainer = "megatron",
    transport: Annotated[
        str | None,
        Option(f"How weights reach the engine. {describe_transports()}.", shown="the first"),
    ] = None,
    dtype: ComputeDtype = "float32",
    fast: Annotated[
        bool, Option("For CI: leave out decoding; the report says what it then cannot see.", panel=TRIAL)
    ] = False,
    steps: Annotated[int, Option("Optimizer steps, each followed by two syncs.", within=FROM_ZERO, panel=TRIAL)] = 1,
    check_weights: CheckWeights = True,
    check_logprobs: CheckLogprobs = True,
    quantize: Annotated[
        Literal["w4a16", "w8a8", "fp8"] | None,
        Option(
            "Quantize the weights on their way to the engine; nccl and ipc cannot.",
            panel=TRIAL,
        ),
    ] = None,
    quantize_ignore: Annotated[
        Words | None,
        Setting("The list of modules that are not quantized.", shown="head and routers", needs=("quantize",)),
    ] = None,
    trainer_quantizer: Annotated[
        Literal["compressed-tensors", "slime"],
        Setting(
            "Which program's reading of the ignore list decides: compressed-tensors (as the engine reads it) or slime.",
            needs=("quantize",),
        ),
    ] = "compressed-tensors",
    pause: Annotated[
        str | None,
        Option(
            "Sync while a request runs: keep, wait or abort (vllm); in_place, retract, abort or wait (sglang).",
            metavar="MODE",
            shown="none runs",
            panel=TRIAL,
        ),
    ] = None,
    sleep_level: Annotated[
        int, Setting("Weights while the engine sleeps: 1 keeps them on the host, 2 drops them.", within=Range(1, 2))
    ] = 1,
    clear_cache: Annotated[
        bool | None,
        Setting(
            "Whether your job resets the engine's prefix cache after each sync: then the trial does too.",
            shown="not known",
        ),
    ] = None,
    perturb: Annotated[
        float | None, Setting("Move every weight by noise of this scale in place of a step.", within=FROM_ZERO)
    ] = None,
    bucket_mb: Annotated[float, Setting("MB of each bucket of the first sync.", within=Range(0.001))] = 64.0,
    send_draft: Annotated[
        bool,
        Setting("Also send the weights of the engine's draft model (--switch draft=…), in a session of its own."),
    ] = False,
    tp: TrainerTp = 1,
    pp: TrainerPp = 1,
    ep: TrainerEp = 1,
    device: TrainerDevice = "auto",
    trainer_gpus: TrainerGpus = None,
    trainer_python: TrainerPython = None,
    engine_tp: EngineTp = 1,
    engine_ep: Annotated[
        int, Setting("Expert parallelism of the engine, within the ranks of --engine-tp.", within=FROM_ONE)
    ] = 1,
    engine_dtype: Annotated[
        Dtype | None,
        Setting("What the engine computes in, where your job has another dtype there (vLLM's auto).", shown="--dtype"),
    ] = None,
    engine_mode: EngineMode = "plain",
    engine_gpus: EngineGpus = None,
    engine_python: EnginePython = None,
    switch: Switches = (),
    timeout: PhaseTimeouts = (),
    hf_config: HfConfig = None,
    despite_errors: DespiteErrors = False,
    record: Annotated[
        StrPath | None,
        Option("Append the syncs to a record, which refit history reads.", metavar="FILE", panel=KEPT, is_output=True),
    ] = None,
    keep: KeepCheckpoints = False,
    pictures: bool = False,
    observer: Observer = SILENT,
) -> "Report":
    """Sync a trainer's weights into a live engine, at step 0 and after steps, and compare with a cold load of the same weights.

    Exit codes: 0 the engine computes with the trainer's weights, 1 findings, 2 could not check.

    Raises CkptcheckError for what cannot be started, and `RecordError`, which carries the report, where the trial is over and the
    record cannot be written.
    """
    from ckptcheck.linter.rule_loader import load_rules
    from ckptcheck.live.refit.feasibility import check_quantization, require_engine_layout
    from ckptcheck.live.refit.live_trial import (
        TrialEngine,
        TrialQuantization,
        TrialSource,
        TrialTrainer,
        run_live_trial,
    )
    from ckptcheck.live.refit.recording import RecordError, append_to_record
    from ckptcheck.live.refit.source import add_source_errors
    from ckptcheck.live.refit.trial_state import TrialSettings, parse_timeouts
    from ckptcheck.live.runtime.engines import registry
    from ckptcheck.runs.history.record import Record
    from ckptcheck.verbs.reports import build_report

    chosen_transport = registry.choose_transport(engine, transport)
    require_engine_layout(engine, tp=engine_tp, ep=engine_ep)
    if quantize is not None:
        check_quantization(quantize, engine, chosen_transport, engine_dtype or dtype)
    if record is not None:
        Record(Path(record)).check_writable()
    settings = TrialSettings(
        steps=steps,
        bucket_bytes=round(bucket_mb * 1e6),
        second_bucket_bytes=max(1, round(bucket_mb * 1e6 / 9)),
        transport=chosen_transport,
        perturb=perturb,
        weights=check_weights,
        logprobs=check_logprobs,
        timeouts=parse_timeouts(several(timeout)),
        pause=registry.choose_pause(engine, pause, chosen_transport, sleep_level),
        sleep_level=sleep_level,
        clears_cache=clear_cache,
        send_draft=send_draft,
        decode=0 if fast else TrialSettings.decode,
    )
    loaded = load_rules()
    asked = {"--set sleep-level=2: the engine never slept": ("REF018",)} if sleep_level == 2 else {}
    trial_source = TrialSource(os.fspath(source), to_path(hf_config), despite_errors, keep)
    left_alone = None if quantize_ignore is None else several(quantize_ignore)
    quantization = None if quantize is None else TrialQuantization(quantize, left_alone, trainer_quantizer)
    record_error: CkptcheckError | None = None
    with run_live_trial(
        trial_source, settings,
        TrialEngine(
            engine, engine_tp, engine_mode, several(switch), engine_gpus, to_path(engine_python), engine_ep, engine_dtype
        ),
        TrialTrainer(trainer, tp, pp, ep, device, trainer_gpus, to_path(trainer_python)),
        dtype=dtype, quantization=quantization, observer=observer,
    ) as trace:  # fmt: skip
        report = add_source_errors(build_report(trace, loaded, asked=asked, pictures=pictures), trial_source.errors)
        try:
            if record is not None:
                append_to_record(trace, Path(record))
        except CkptcheckError as error:
            # the trial is over, and its findings are worth more than the record
            record_error = error
    if record_error is not None:
        raise RecordError(record_error.message, report) from record_error
    return report
