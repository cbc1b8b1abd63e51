"""Runs a weight sync and its checks, asks running servers, and reads records of syncs."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ckptcheck.api.arguments import (
    AdapterUpdate,
    Device,
    Dtype,
    EngineMode,
    Quantizer,
    Scheme,
    StrPath,
    TrainerName,
    normalize_gpu_option,
    require_choices,
    require_ranges,
    to_path,
    wrap_single,
)
from ckptcheck.api.recording import plan_first_step
from ckptcheck.api.report import build_report
from ckptcheck.errors import CkptcheckError, UsageError
from ckptcheck.text.observer import SILENT, Observer

if TYPE_CHECKING:
    from ckptcheck.linter.report import Report
    from ckptcheck.live.conformance.own_transport import WeightTransport
    from ckptcheck.live.runtime.process.exchange import TensorExchange
    from ckptcheck.live.runtime.trainers.base import Trainer


def refit(
    source: StrPath,
    *,
    engine: str = "vllm",
    trainer: TrainerName = "megatron",
    tp: int = 1,
    pp: int = 1,
    ep: int = 1,
    engine_tp: int = 1,
    engine_ep: int = 1,
    engine_pp: int = 1,
    engine_dp: int = 1,
    engine_mode: EngineMode = "plain",
    transport: str | None = None,
    quantize: Scheme | None = None,
    ignore: Sequence[str] | None = None,
    trainer_quantizer: Quantizer = "compressed-tensors",
    dtype: Dtype = "float32",
    device: Device = "auto",
    trainer_gpus: str | None = None,
    engine_gpus: str | None = None,
    switch: Sequence[str] = (),
    send_draft: bool = False,
    bucket_mb: float = 64.0,
    pause: str | None = None,
    sleep_level: int = 1,
    clear_cache: bool = False,
    steps: int = 1,
    perturb: float | None = None,
    fast: bool = False,
    check_weights: bool = True,
    check_logprobs: bool = True,
    hf_config: StrPath | None = None,
    engine_python: StrPath | None = None,
    trainer_python: StrPath | None = None,
    timeout: Sequence[str] = (),
    record: StrPath | None = None,
    rollouts: StrPath | Mapping[str, Any] | None = None,
    despite_errors: bool = False,
    keep: bool = False,
    pictures: bool = False,
    observer: Observer = SILENT,
) -> Report:
    """Sync a trainer's weights into a live engine, at step 0 and after steps, and compare with a cold load of the same weights.

    Args:
        source: a Hugging Face checkpoint or a Megatron run on this disk.
        engine: the inference engine: vllm or sglang.
        trainer: the trainer that holds the weights.
        tp: tensor parallelism of the trainer.
        pp: pipeline parallelism of the trainer.
        ep: expert parallelism of the trainer.
        engine_tp: tensor parallelism of the engine.
        engine_ep: expert parallelism of the engine, within the ranks of engine_tp.
        engine_pp: pipeline stages of the engine; a trial has one.
        engine_dp: replicas of the engine; a trial has one.
        engine_mode: plain keeps weights readable on a CPU; stock leaves the engine as it is.
        transport: how weights reach the engine; None: the engine's first.
        quantize: quantize the weights on their way.
        ignore: entries of the list of modules that are not quantized; None: the head and the routers.
        trainer_quantizer: whose reading of the ignore list decides what is quantized.
        dtype: what both sides compute in.
        device: where the trainer computes; auto: on GPUs where there are any, one for each rank.
        trainer_gpus: GPUs that the trainer may see, comma-separated; None: all.
        engine_gpus: GPUs that the engine may see, comma-separated; None: all.
        switch: settings of the engine, as ``NAME=VALUE``.
        send_draft: also send what the engine drafts with, in a session of its own.
        bucket_mb: MB of a bucket of the first sync.
        pause: what becomes of a request that runs during the sync; None: none runs.
        sleep_level: what becomes of the weights while the engine sleeps: 1 kept on the host, 2 dropped.
        clear_cache: reset the engine's prefix cache after each sync, as the job does.
        steps: optimizer steps, each followed by two syncs.
        perturb: scale of the noise that moves every weight in place of a step.
        fast: leave out scoring by decoding, as a gate in CI does; the report says what that leaves unseen.
        check_weights: compare every tensor with a cold load.
        check_logprobs: compare logprobs on both sides.
        hf_config: folder with the config.json of a Megatron run's model.
        engine_python: a Python that has the engine; None: the one that ckptcheck installed.
        trainer_python: a Python that has the trainer; None: the one that ckptcheck installed.
        timeout: seconds of the phases, as ``SECONDS`` or ``PHASE=SECONDS`` (start, score, step, sync).
        record: file that the syncs are appended to, see `history`.
        rollouts: file for responses that the engine gives after the first sync, scored by both sides, see `judge`; or a mapping
            with the file as ``output`` and arguments of `record_rollouts` about prompts and sampling.
        despite_errors: go on where a scan of the source finds errors; the report names them.
        keep: keep the checkpoints that are written on the way.
        pictures: draw what was found, for a notebook.
        observer: receives messages.

    Raises CkptcheckError for what cannot be started, and `RecordError`, which carries the report, where the trial is over and the
    record cannot be written.

    """
    switch = wrap_single(switch)
    timeout = wrap_single(timeout)
    ignore = wrap_single(ignore) if ignore is not None else None
    require_ranges(
        tp=tp, pp=pp, ep=ep, engine_tp=engine_tp, engine_ep=engine_ep, engine_pp=engine_pp, engine_dp=engine_dp,
        bucket_mb=bucket_mb, sleep_level=sleep_level, steps=steps,
        perturb=perturb,
    )  # fmt: skip
    trainer_gpus = normalize_gpu_option("--trainer-gpus", trainer_gpus)
    engine_gpus = normalize_gpu_option("--engine-gpus", engine_gpus)
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
    from ckptcheck.live.runtime.engines.engine_options import parse_switches
    from ckptcheck.runs.history.record import Record
    from ckptcheck.unused_options import Arguments, reject_unused_refit_options

    given = Arguments(refit, locals())
    reject_unused_refit_options(
        given, device=device, quantizes=quantize is not None, steps=steps, checks_weights=check_weights,
        checks_logprobs=check_logprobs, timeouts=timeout,
    )  # fmt: skip
    require_choices(trainer=(trainer, TrainerName), engine_mode=(engine_mode, EngineMode), dtype=(dtype, Dtype))
    require_choices(
        device=(device, Device), quantize=(quantize, Scheme), trainer_quantizer=(trainer_quantizer, Quantizer)
    )
    chosen_transport = registry.choose_transport(engine, transport)
    require_engine_layout(engine, tp=engine_tp, ep=engine_ep, pp=engine_pp, dp=engine_dp)
    if quantize is not None:
        check_quantization(quantize, engine, chosen_transport, dtype)
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
        timeouts=parse_timeouts(timeout),
        pause=registry.choose_pause(engine, pause, chosen_transport, sleep_level),
        sleep_level=sleep_level,
        clears_cache=clear_cache,
        send_draft=send_draft,
        decode=0 if fast else TrialSettings.decode,
    )
    loaded = load_rules()
    trial_source = TrialSource(os.fspath(source), to_path(hf_config), despite_errors, keep)
    first_step = (
        plan_first_step(rollouts, os.fspath(source), parse_switches(list(switch)), observer)
        if rollouts is not None
        else None
    )
    record_error: CkptcheckError | None = None
    with run_live_trial(
        trial_source, settings,
        TrialEngine(engine, engine_tp, engine_mode, switch, engine_gpus, to_path(engine_python), engine_ep),
        TrialTrainer(trainer, tp, pp, ep, device, trainer_gpus, to_path(trainer_python)),
        dtype=dtype, quantization=TrialQuantization(quantize, ignore, trainer_quantizer) if quantize is not None else None,
        plan_first_step=first_step, observer=observer,
    ) as trace:  # fmt: skip
        report = add_source_errors(build_report(trace, loaded, pictures=pictures), trial_source.errors)
        try:
            if record is not None:
                append_to_record(trace, Path(record))
        except CkptcheckError as error:
            # the trial is over, and its findings are worth more than the record
            record_error = error
    if record_error is not None:
        raise RecordError(record_error.message, report) from record_error
    return report


def conformance(
    source: StrPath | None = None,
    *,
    transport: str | Callable[[], WeightTransport] | None = None,
    engine: str = "vllm",
    engine_tp: int = 1,
    engine_mode: EngineMode = "plain",
    dtype: Dtype = "float32",
    engine_gpus: str | None = None,
    switch: Sequence[str] = (),
    hf_config: StrPath | None = None,
    engine_python: StrPath | None = None,
    despite_errors: bool = False,
    markdown: StrPath | None = None,
    pictures: bool = False,
    observer: Observer = SILENT,
) -> Report:
    """Put faults on a transport, one after the other, and report how each was answered (``ckptcheck refit --conformance``).

    Args:
        source: a checkpoint whose weights are sent; None, for a transport of your own: random ones of the receiver's shapes.
        transport: how weights reach the engine, by its name (None: the engine's first), or one of your own: a class with five
            methods, or its name as ``module:Class``.
        engine: the inference engine: vllm or sglang.
        engine_tp: tensor parallelism of the engine.
        engine_mode: plain keeps weights readable on a CPU; stock leaves the engine as it is.
        dtype: what the engine computes in.
        engine_gpus: GPUs that the engine may see, comma-separated; None: all.
        switch: settings of the engine, as ``NAME=VALUE``.
        hf_config: folder with the config.json of a Megatron run's model.
        engine_python: a Python that has the engine; None: the one that ckptcheck installed.
        despite_errors: go on where a scan of the source finds errors; the report names them.
        markdown: file for the table in Markdown.
        pictures: draw what was found, for a notebook.
        observer: receives messages.

    Raises CkptcheckError for what cannot be started.

    """
    switch = wrap_single(switch)
    require_ranges(engine_tp=engine_tp)
    engine_gpus = normalize_gpu_option("--engine-gpus", engine_gpus)
    from ckptcheck.live.conformance.live_run import is_own_transport, try_engine_transport, try_own_transport
    from ckptcheck.live.refit.live_trial import TrialEngine, TrialSource
    from ckptcheck.live.refit.source import add_source_errors
    from ckptcheck.live.runtime.engines import registry
    from ckptcheck.text.file_io import replace_file, require_writable
    from ckptcheck.unused_options import Arguments, reject_unused_conformance_options

    is_own = is_own_transport(transport)
    reject_unused_conformance_options(Arguments(conformance, locals()), is_own=is_own, has_source=source is not None)
    require_choices(engine_mode=(engine_mode, EngineMode), dtype=(dtype, Dtype))
    if markdown is not None:
        require_writable(Path(markdown))
    trial_source = None if source is None else TrialSource(os.fspath(source), to_path(hf_config), despite_errors)
    if transport is not None and (is_own or not isinstance(transport, str)):
        trace = try_own_transport(transport, trial_source, observer=observer)
    elif trial_source is None:
        raise CkptcheckError(
            "there are no weights to send", hint="name a checkpoint, or a transport of your own by module:Class"
        )
    else:
        trace = try_engine_transport(
            registry.choose_transport(engine, transport), trial_source,
            TrialEngine(engine, engine_tp, engine_mode, switch, engine_gpus, to_path(engine_python)),
            dtype=dtype, observer=observer,
        )  # fmt: skip
    report = add_source_errors(
        build_report(trace, pictures=pictures), trial_source.errors if trial_source is not None else None
    )
    if markdown is not None:
        replace_file(Path(markdown), trace.markdown().encode())
    return report


def attach(
    *servers: str,
    source: StrPath | None = None,
    allow_write: bool = False,
    allow_remote: bool = False,
    trainer: TrainerName = "transformers",
    tp: int = 1,
    pp: int = 1,
    ep: int = 1,
    device: Device = "auto",
    trainer_gpus: str | None = None,
    check_weights: bool = True,
    check_logprobs: bool = True,
    hf_config: StrPath | None = None,
    engine_python: StrPath | None = None,
    trainer_python: StrPath | None = None,
    timeout: Sequence[str] = (),
    despite_errors: bool = False,
    keep: bool = False,
    pictures: bool = False,
    observer: Observer = SILENT,
) -> Report:
    """Compare running SGLang or vLLM servers with a checkpoint and with each other (``ckptcheck refit --attach``).

    Args:
        servers: URLs. The environment variable CKPTCHECK_API_KEY has their API key.
        source: the checkpoint that they should serve; None: the servers are compared with each other only.
        allow_write: overwrite the servers' weights and have them load `source`.
        allow_remote: accept servers on other machines.
        trainer: the trainer whose logprobs the servers' are compared with.
        tp: tensor parallelism of the trainer.
        pp: pipeline parallelism of the trainer.
        ep: expert parallelism of the trainer.
        device: where the trainer computes.
        trainer_gpus: GPUs that the trainer may see, comma-separated; None: all.
        check_weights: compare checksums of the weights with those of an engine that is started here.
        check_logprobs: compare logprobs.
        hf_config: folder with the config.json of a Megatron run's model.
        engine_python: a Python that has the engine; None: the one that ckptcheck installed.
        trainer_python: a Python that has the trainer; None: the one that ckptcheck installed.
        timeout: seconds of the phases, as ``SECONDS`` or ``PHASE=SECONDS`` (start, score).
        despite_errors: go on where a scan of the source finds errors; the report names them.
        keep: keep the checkpoints that are written on the way.
        pictures: draw what was found, for a notebook.
        observer: receives messages.

    """
    timeout = wrap_single(timeout)
    require_ranges(tp=tp, pp=pp, ep=ep)
    trainer_gpus = normalize_gpu_option("--trainer-gpus", trainer_gpus)
    import tempfile
    from contextlib import ExitStack

    from ckptcheck.linter.rule_loader import load_rules
    from ckptcheck.live.refit.live_trial import clean_up_folder
    from ckptcheck.live.refit.running_servers.attach import AttachOptions, attach_to_servers
    from ckptcheck.live.refit.source import add_source_errors, open_source
    from ckptcheck.live.refit.trial_state import parse_timeouts
    from ckptcheck.live.runtime.process.signal_guard import SignalGuard
    from ckptcheck.live.runtime.trainers.layout import ParallelLayout
    from ckptcheck.live.runtime.trainers.registry import start_trainer
    from ckptcheck.unused_options import Arguments, reject_unused_attach_options

    given = Arguments(attach, locals())
    reject_unused_attach_options(
        given, device=device, has_source=source is not None, checks_weights=check_weights, checks_logprobs=check_logprobs,
        timeouts=timeout,
    )  # fmt: skip
    require_choices(trainer=(trainer, TrainerName), device=(device, Device))
    if not servers:
        raise CkptcheckError("there is no server to attach to", hint="name the URL of a running SGLang or vLLM")
    loaded = load_rules()
    timeouts = parse_timeouts(timeout)

    def start(checkpoint: Any, exchange: TensorExchange, computed: str) -> Trainer:
        """Start the trainer that gives the logprobs."""
        return start_trainer(
            trainer, checkpoint, exchange, ParallelLayout(tp=tp, pp=pp, ep=ep), computed, device=device, gpus=trainer_gpus,
            python=to_path(trainer_python), scratch=(exchange.folder,),
        )  # fmt: skip

    options = AttachOptions(
        servers, start, timeouts, allow_write=allow_write, allow_remote=allow_remote, check_weights=check_weights,
        check_logprobs=check_logprobs, engine_python=to_path(engine_python),
    )  # fmt: skip
    errors: list[str] | None = [] if despite_errors else None
    with SignalGuard() as signal_guard, ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="ckptcheck-refit-"))
        stack.callback(clean_up_folder, folder, keep, observer)
        ckpt = None
        if source is not None:
            ckpt = open_source(os.fspath(source), folder / "source", to_path(hf_config), tolerated=errors)
        report = build_report(attach_to_servers(ckpt, options, observer.log), loaded, pictures=pictures)
        signal_guard.ignore_signals()
    return add_source_errors(report, errors)


def lora(
    source: StrPath,
    adapter: StrPath,
    *,
    engine: str = "vllm",
    update: AdapterUpdate = "reload",
    engine_tp: int = 1,
    engine_mode: EngineMode = "plain",
    dtype: Dtype = "float32",
    engine_gpus: str | None = None,
    engine_python: StrPath | None = None,
    timeout: Sequence[str] = (),
    pictures: bool = False,
    observer: Observer = SILENT,
) -> Report:
    """Load a LoRA adapter into a live engine, evict it, replace it under its name, and check what requests with it compute.

    Args:
        source: the base model, a checkpoint on this disk.
        adapter: the folder of the adapter, as PEFT writes it.
        engine: the inference engine: vllm or sglang.
        update: how a new adapter is loaded under the old name: reload, inplace or same.
        engine_tp: tensor parallelism of the engine.
        engine_mode: plain keeps weights readable on a CPU; stock leaves the engine as it is.
        dtype: what the engine computes in.
        engine_gpus: GPUs that the engine may see, comma-separated; None: all.
        engine_python: a Python that has the engine; None: the one that ckptcheck installed.
        timeout: seconds of the phases, as ``SECONDS`` or ``PHASE=SECONDS`` (start, sync).
        pictures: draw what was found, for a notebook.
        observer: receives messages.

    Raises CkptcheckError for what cannot be opened or started.

    """
    require_ranges(engine_tp=engine_tp)
    require_choices(update=(update, AdapterUpdate), engine_mode=(engine_mode, EngineMode), dtype=(dtype, Dtype))
    engine_gpus = normalize_gpu_option("--engine-gpus", engine_gpus)
    from ckptcheck.live.refit.live_trial import TrialEngine
    from ckptcheck.live.refit.lora.live_trial import run_live_lora_trial
    from ckptcheck.live.refit.trial_state import parse_timeouts
    from ckptcheck.live.runtime.engines import registry
    from ckptcheck.unused_options import reject_unused_lora_phases

    timeout = wrap_single(timeout)
    reject_unused_lora_phases(timeout)
    timeouts = parse_timeouts(timeout)
    registry.require_engine(engine)
    trial_engine = TrialEngine(engine, engine_tp, engine_mode, (), engine_gpus, to_path(engine_python))
    with run_live_lora_trial(
        os.fspath(source), Path(adapter), trial_engine, dtype=dtype, update=update, timeouts=timeouts, observer=observer
    ) as trace:
        return build_report(trace, pictures=pictures)


def history(
    file: StrPath,
    *,
    saved: StrPath | None = None,
    like: StrPath | None = None,
    rollouts: StrPath | None = None,
    pictures: bool = False,
    observer: Observer = SILENT,
) -> Report:
    """Say which tensors changed at each weight sync, what was never updated, and whether the version moved.

    Args:
        file: the record that ``refit(record=...)`` or `ckptcheck.watch` wrote.
        saved: a checkpoint that the job saved: whether its weights are among those that were sent, by their identity.
        like: see `identity`; for a Megatron run that was saved.
        rollouts: rollouts of the job, in any form that `judge` reads: whether a sync gave the engine each weight version in them.
        pictures: draw what was found, for a notebook.
        observer: receives messages and progress.

    """
    from ckptcheck.runs.history.held_against import ResponseVersions, SavedWeights
    from ckptcheck.runs.history.history import open_history

    held = responses = None
    if like is not None and saved is None:
        raise UsageError("like has no effect without saved", hint="name the checkpoint that the job saved")
    if saved is not None:
        from ckptcheck.api.comparisons import identity

        named = identity(saved, like=like, observer=observer)
        if named.names != "Hugging Face":
            raise CkptcheckError(
                f"{named.target} has Megatron's names, and the record those of Hugging Face",
                hint="name a Hugging Face checkpoint of the same model with --like",
            )
        held = SavedWeights(named.target, named.identity)
    if rollouts is not None:
        from ckptcheck.rollouts.files import read_rollouts
        from ckptcheck.rollouts.response_versions import count_versions

        responses = ResponseVersions(os.fspath(rollouts), count_versions(read_rollouts(Path(rollouts))))
    return build_report(open_history(Path(file), saved=held, responses=responses), pictures=pictures)


def follow_history(file: StrPath, *, pictures: bool = False) -> Iterator[Report]:
    """Yield a report as `history` does, now and whenever a sync was added (``ckptcheck refit history --watch``).

    It never ends by itself. A record that does not exist yet is waited for.

    file: the record of a job that runs.
    """
    from ckptcheck.linter.rule_loader import load_rules
    from ckptcheck.runs.history.follow import follow_history as follow

    loaded = load_rules()
    for record in follow(Path(file)):
        yield build_report(record, loaded, pictures=pictures)
