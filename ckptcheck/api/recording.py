"""Records and scores rollouts, converts those of frameworks, and measures the floor of a model."""

from __future__ import annotations

import inspect
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ckptcheck.api.arguments import (
    FROM_ONE,
    Dtype,
    EngineMode,
    LogprobKind,
    NumberRange,
    RolloutFormat,
    StrPath,
    TokenSampler,
    TrainerName,
    require_choices,
    require_range,
    require_ranges,
    to_path,
    wrap_single,
)
from ckptcheck.api.judging import load_decoder, read_rollout_files
from ckptcheck.api.report import build_report
from ckptcheck.errors import CkptcheckError
from ckptcheck.text.observer import SILENT, Observer

if TYPE_CHECKING:
    from ckptcheck.checkpoint.checkpoint import Checkpoint
    from ckptcheck.live.experiments.calibrate import FloorMeasurement
    from ckptcheck.live.experiments.first_step import FirstStepRollouts
    from ckptcheck.live.refit.first_step import PlanFirstStep
    from ckptcheck.live.runtime.engines.engine_options import Switches
    from ckptcheck.rollouts import Rollouts


COHERENCE_RULES = ("PAR003", "PAR009", "PAR027", "PAR050", "PAR076")
"""The rules that judge an engine's responses alone."""


def _log_responses(rollouts: Rollouts, source: Path, observer: Observer) -> None:
    """Write the texts of the first responses, and whether they are coherent."""
    from ckptcheck.linter.rule_loader import load_rules
    from ckptcheck.rollouts.response_texts import read_texts
    from ckptcheck.rollouts.rollout_evidence import RolloutEvidence

    decode_text = load_decoder(source) if (source / "tokenizer.json").is_file() else None
    for text in read_texts(rollouts, decode_text) if decode_text is not None else ():
        mean = "" if text.logprob is None else f" (mean logprob {text.logprob:.3g})"
        observer.log(f"{text.prompt} → {text.response}{mean}")
    rules = [rule for rule in load_rules() if rule.code in COHERENCE_RULES]
    report = build_report(RolloutEvidence(os.fspath(source), rollouts), rules)
    for finding in report.findings:
        observer.log(f"{finding.code} {finding.severity}: {finding.message}")
    if not report.findings and report.passed:
        observer.log("the responses look coherent: none of their tokens loop, and the engine finds them likely")


def record_rollouts(
    source: StrPath,
    output: StrPath | None = None,
    *,
    engine: str = "vllm",
    prompts: StrPath | None = None,
    number: int = 8,
    length: int = 96,
    response: int = 32,
    batch: int = 8,
    temperature: float = 1.0,
    top_p: float = 1.0,
    top_k: int = 0,
    presence_penalty: float = 0.0,
    frequency_penalty: float = 0.0,
    repetition_penalty: float = 1.0,
    seed: int = 0,
    full: int = 0,
    routing: bool = False,
    ignore_eos: bool = False,
    step: int | None = None,
    dtype: Dtype = "float32",
    switch: Sequence[str] = (),
    engine_mode: EngineMode = "plain",
    engine_tp: int = 1,
    engine_python: StrPath | None = None,
    timeout: float = 900.0,
    observer: Observer = SILENT,
) -> Rollouts:
    """Have an engine answer prompts, and return tokens and logprobs (``ckptcheck parity record``). No trainer is loaded.

    Args:
        source: a Hugging Face checkpoint or a Megatron run on this disk.
        output: file that the rollouts are written to; None: none.
        engine: the inference engine: vllm or sglang.
        prompts: file of prompts: JSON lines (tokens, messages, text), or plain lines; None: built-in ones.
        number: prompts to answer.
        length: tokens of a built-in prompt, at most.
        response: tokens of a response, at most.
        batch: prompts that are answered at once.
        temperature: sampling temperature; 0: greedy.
        top_p: nucleus sampling; 1: off.
        top_k: sampling from the k most likely tokens; 0: off.
        presence_penalty: taken from the logits of tokens that the response has already; 0: off.
        frequency_penalty: taken as often as the response has a token already; 0: off.
        repetition_penalty: divides positive logits of tokens that are there already, and multiplies negative ones; 1: off.
        seed: seed of the first prompt; every further prompt adds 1.
        full: response tokens of which the logprobs of the whole vocabulary are kept.
        routing: also keep which experts tokens went to.
        ignore_eos: go on past end tokens.
        step: step of the training run, kept with the rollouts.
        dtype: what the engine computes in.
        switch: settings of the engine, as ``NAME=VALUE``.
        engine_mode: plain keeps weights readable on a CPU; stock leaves the engine as it is.
        engine_tp: tensor parallelism of the engine.
        engine_python: a Python that has the engine; None: the one that ckptcheck installed.
        timeout: seconds for any one call.
        observer: receives messages and progress.

    """
    switch = wrap_single(switch)
    require_ranges(
        number=number, length=length, response=response, batch=batch, temperature=temperature, top_p=top_p, top_k=top_k,
        presence_penalty=presence_penalty, frequency_penalty=frequency_penalty, repetition_penalty=repetition_penalty,
        seed=seed, full=full, step=step, engine_tp=engine_tp, timeout=timeout,
    )  # fmt: skip
    from ckptcheck.live.experiments.default_prompts import DefaultPrompts
    from ckptcheck.live.experiments.live_session import open_live_session, with_batch_size
    from ckptcheck.live.experiments.record import describe_rollouts
    from ckptcheck.live.experiments.record import record_rollouts as record
    from ckptcheck.live.experiments.scoring import engine_logprob_temperature
    from ckptcheck.live.runtime.engines import registry
    from ckptcheck.live.runtime.engines.engine_options import parse_switches
    from ckptcheck.live.runtime.engines.sampling import Sampling
    from ckptcheck.live.runtime.engines.sizing import SPARE_TOKENS
    from ckptcheck.rollouts import write_rollouts
    from ckptcheck.rollouts.expert_routing import add_expert_routing
    from ckptcheck.rollouts.full_vocab import add_full_vocab_logprobs
    from ckptcheck.text.file_io import require_output_apart, require_writable
    from ckptcheck.unused_options import Arguments, reject_unused_length

    given = Arguments(record_rollouts, locals())
    reject_unused_length(given, has_prompts=prompts is not None)
    require_choices(dtype=(dtype, Dtype), engine_mode=(engine_mode, EngineMode))
    require_output_apart(to_path(output), to_path(prompts), Path(source))
    # raises CkptcheckError where there is no such engine
    registry.require_engine(engine)
    require_writable(to_path(output))
    switches = parse_switches(list(switch))
    sampling = Sampling(
        temperature, top_p, top_k, response, seed, ignore_eos, presence_penalty, frequency_penalty, repetition_penalty
    )
    with open_live_session(
        os.fspath(source), timeout=timeout, engine_python=to_path(engine_python), observer=observer
    ) as live:
        default_prompts = DefaultPrompts(live.ckpt)
        prompt_tokens = default_prompts.choose(length, number, to_path(prompts))
        context_len = max(map(len, prompt_tokens)) + response + SPARE_TOKENS
        with observer.phase(f"starting {engine}"):
            running = live.start_engine(
                engine, dtype=dtype, ranks=engine_tp, mode=engine_mode, context_len=context_len,
                concurrent_sequences=max(8, batch), switches=with_batch_size(switches, batch),
            )  # fmt: skip
        try:
            live.log_ignored_switches(running)
            metadata = describe_rollouts(
                os.fspath(source), live.ckpt, default_prompts, running, switches, context_len, step
            )
            with observer.progress("answering", bytewise=False) as advance:
                rollouts = record(
                    running, prompt_tokens, sampling, metadata, batch=batch, timeout=timeout, advance=advance
                )
            if full:
                heat = engine_logprob_temperature(rollouts.metadata)
                rollouts = add_full_vocab_logprobs(
                    rollouts, "engine", running, live.folder, number=full, temperature=heat
                )
            if routing:
                rollouts = add_expert_routing(rollouts, "engine", running)
                if "engine_routing" not in rollouts:
                    observer.log(f"{engine} does not tell which experts tokens go to")
        finally:
            running.close()
    if output is not None:
        write_rollouts(rollouts, Path(output))
        observer.log(f"{rollouts.sequence_count} responses, {len(rollouts.tokens):,} tokens: {output}")
    _log_responses(rollouts, Path(source), observer)
    return rollouts


def plan_first_step(
    rollouts: StrPath | Mapping[str, Any], source: str, switches: Switches, observer: Observer
) -> PlanFirstStep:
    """Return what plans the rollouts of a trial of `refit`.

    rollouts: the file, or the file as ``output`` with arguments of `record_rollouts`. Raises CkptcheckError for an argument that it
    does not take, and for a file that cannot be written.
    """
    from ckptcheck.live.experiments.first_step import FirstStepRollouts
    from ckptcheck.live.refit.first_step import FIRST_STEP_ARGUMENTS
    from ckptcheck.live.runtime.engines.sampling import Sampling
    from ckptcheck.text.file_io import require_writable

    given = dict(rollouts) if isinstance(rollouts, Mapping) else {"output": rollouts}
    output = to_path(given.pop("output", None))
    unknown = sorted(given.keys() - {*FIRST_STEP_ARGUMENTS})
    if output is None or unknown:
        raise CkptcheckError(
            f"rollouts take no {', '.join(unknown)}" if unknown else "rollouts have no output",
            hint=f"they take output, and of record_rollouts {', '.join(FIRST_STEP_ARGUMENTS)}",
        )
    require_writable(output)
    parameters = inspect.signature(record_rollouts).parameters
    chosen = {name: given.get(name, parameters[name].default) for name in FIRST_STEP_ARGUMENTS}
    require_ranges(**{name: value for name, value in chosen.items() if name not in ("prompts", "ignore_eos")})
    sampling = Sampling(
        chosen["temperature"], chosen["top_p"], chosen["top_k"], chosen["response"], chosen["seed"], chosen["ignore_eos"],
        chosen["presence_penalty"], chosen["frequency_penalty"], chosen["repetition_penalty"],
    )  # fmt: skip

    def plan(ckpt: Checkpoint) -> FirstStepRollouts | None:
        first_step = FirstStepRollouts(
            ckpt, source, output, sampling, switches, observer, prompts=to_path(chosen["prompts"]),
            number=chosen["number"], length=chosen["length"], batch=chosen["batch"], step=chosen["step"],
        )  # fmt: skip
        if first_step.has_room:
            return first_step
        observer.log(f"no rollouts: the model has no room for {first_step.context_len} tokens")
        return None

    return plan


def score_rollouts(
    file: StrPath,
    source: StrPath,
    output: StrPath | None = None,
    *,
    trainer: TrainerName = "transformers",
    temperature: float | None = None,
    trainer_version: int | None = None,
    tp: int = 1,
    pp: int = 1,
    ep: int = 1,
    dtype: Dtype = "float32",
    head_fp32: bool = False,
    tokens: int = 8192,
    trainer_python: StrPath | None = None,
    timeout: float = 900.0,
    observer: Observer = SILENT,
) -> Rollouts:
    """Have a trainer score rollouts, and return them with its logprobs (``ckptcheck parity score``). No engine is loaded.

    Args:
        file: rollouts, as `record_rollouts` or `convert_rollouts` wrote them.
        source: the checkpoint that scores them.
        output: file that the rollouts are written to; None: none.
        trainer: the trainer that scores.
        temperature: what logits are divided by; None: the temperature of the engine's logprobs.
        trainer_version: version of its weights, as the engine counts them: what lag is counted from.
        tp: tensor parallelism of the trainer.
        pp: pipeline parallelism of the trainer.
        ep: expert parallelism of the trainer.
        dtype: what the trainer computes in.
        head_fp32: its output head computes in float32.
        tokens: tokens that the trainer is handed at once, padding included.
        trainer_python: a Python that has the trainer; None: the one that ckptcheck installed.
        timeout: seconds for any one call.
        observer: receives messages and progress.

    """
    require_ranges(trainer_version=trainer_version, tp=tp, pp=pp, ep=ep, timeout=timeout)
    require_range("temperature", temperature, NumberRange(1e-6))
    require_range("tokens", tokens, FROM_ONE)
    from ckptcheck.live.experiments.live_session import open_live_session
    from ckptcheck.live.experiments.scoring import score_rollouts
    from ckptcheck.live.runtime.trainers.layout import ParallelLayout
    from ckptcheck.rollouts import read_rollouts, write_rollouts
    from ckptcheck.text.file_io import require_output_apart, require_writable

    require_choices(trainer=(trainer, TrainerName), dtype=(dtype, Dtype))
    require_output_apart(to_path(output), Path(file), Path(source))
    require_writable(to_path(output))
    rollouts = read_rollouts(Path(file))
    if rollouts.defects:
        raise CkptcheckError(
            f"{file} cannot be scored: {rollouts.defects[0].text}", hint=f"ckptcheck parity judge {file}"
        )
    with open_live_session(
        os.fspath(source), timeout=timeout, trainer_python=to_path(trainer_python), observer=observer
    ) as live:
        layout = ParallelLayout(tp=tp, pp=pp, ep=ep)
        with observer.phase(f"starting {trainer}"):
            scorer = live.start_trainer(trainer, dtype=dtype, head_fp32=head_fp32, layout=layout)
        try:
            with observer.progress("scoring", bytewise=False) as advance:
                scored = score_rollouts(
                    rollouts, scorer, temperature=temperature, version=trainer_version, tokens=tokens,
                    folder=live.folder, advance=advance,
                )  # fmt: skip
        finally:
            scorer.close()
    if output is not None:
        write_rollouts(scored, Path(output))
        observer.log(f"{scored.sequence_count} sequences scored: {output}")
    return scored


def calibrate_floor(
    source: StrPath,
    output: StrPath | None = None,
    *,
    engine: str = "vllm",
    trainer: TrainerName = "transformers",
    prompts: StrPath | None = None,
    number: int = 8,
    length: int = 96,
    response: int = 32,
    dtype: Dtype = "float32",
    trainer_dtype: Dtype | None = None,
    head_fp32: bool = False,
    tp: int = 1,
    pp: int = 1,
    ep: int = 1,
    switch: Sequence[str] = (),
    engine_mode: EngineMode = "plain",
    engine_tp: int = 1,
    engine_python: StrPath | None = None,
    trainer_python: StrPath | None = None,
    timeout: float = 900.0,
    observer: Observer = SILENT,
) -> FloorMeasurement:
    """Measure the noise floor of a model (``ckptcheck parity calibrate``).

    The floor is the gap between the logprobs of both sides with equal weights, and of each side with itself.

    Args:
        source: a Hugging Face checkpoint or a Megatron run on this disk.
        output: file that the floor is written to; None: none.
        engine: the inference engine: vllm or sglang.
        trainer: the trainer that scores.
        prompts: file of prompts: JSON lines (tokens, messages, text), or plain lines; None: built-in ones.
        number: prompts.
        length: tokens of a built-in prompt, at most.
        response: tokens of a response.
        dtype: what the engine computes in.
        trainer_dtype: what the trainer computes in; None: as `dtype`.
        head_fp32: the trainer's output head computes in float32.
        tp: tensor parallelism of the trainer.
        pp: pipeline parallelism of the trainer.
        ep: expert parallelism of the trainer.
        switch: settings of the engine, as ``NAME=VALUE``.
        engine_mode: plain keeps weights readable on a CPU; stock leaves the engine as it is.
        engine_tp: tensor parallelism of the engine.
        engine_python: a Python that has the engine; None: the one that ckptcheck installed.
        trainer_python: a Python that has the trainer; None: the one that ckptcheck installed.
        timeout: seconds for any one call.
        observer: receives messages.

    """
    switch = wrap_single(switch)
    require_ranges(
        number=number, length=length, response=response, tp=tp, pp=pp, ep=ep, engine_tp=engine_tp, timeout=timeout
    )
    from ckptcheck.live.experiments.calibrate import calibrate
    from ckptcheck.live.experiments.default_prompts import DefaultPrompts
    from ckptcheck.live.experiments.live_session import describe_side, open_live_session, with_batch_size
    from ckptcheck.live.runtime.engines import registry
    from ckptcheck.live.runtime.engines.engine_options import parse_switches
    from ckptcheck.live.runtime.engines.sizing import SPARE_TOKENS
    from ckptcheck.live.runtime.trainers.layout import ParallelLayout
    from ckptcheck.text.file_io import require_output_apart, require_writable
    from ckptcheck.unused_options import Arguments, reject_unused_length

    given = Arguments(calibrate_floor, locals())
    reject_unused_length(given, has_prompts=prompts is not None)
    require_choices(trainer=(trainer, TrainerName), engine_mode=(engine_mode, EngineMode))
    require_choices(dtype=(dtype, Dtype), trainer_dtype=(trainer_dtype, Dtype))
    # raises CkptcheckError where there is no such engine
    registry.require_engine(engine)
    require_output_apart(to_path(output), to_path(prompts), Path(source))
    require_writable(to_path(output))
    switches = parse_switches(list(switch))
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


def convert_rollouts(
    sources: StrPath | Sequence[StrPath],
    output: StrPath | None = None,
    *,
    source: RolloutFormat | None = None,
    model: str | None = None,
    step: int | None = None,
    logprobs: LogprobKind | None = None,
    temperature: float | None = None,
    trainer_temperature: float | None = None,
    trainer_version: int | None = None,
    clip_low: float | None = None,
    clip_high: float | None = None,
    sampled_by: TokenSampler | None = None,
    observer: Observer = SILENT,
) -> Rollouts:
    """Take over rollouts of a framework, or answers of vLLM and SGLang (``ckptcheck parity convert``).

    No pickle is run and no torch is needed.

    Args:
        sources: files of one framework, or a folder of .jsonl files.
        output: file that the rollouts are written to, .jsonl for JSON lines, .pt for slime's --load-debug-rollout-data (needs
            torch); None: none.
        source: what wrote them; None: detected by their content.
        model: the model's name, kept with the rollouts.
        step: step of the run, from 0.
        logprobs: the distribution of the engine's logprobs.
        temperature: the engine's sampling temperature.
        trainer_temperature: what the trainer divided logits by.
        trainer_version: version of the trainer's weights, as the engine counts them.
        clip_low: the objective clips the policy ratio below 1 - clip_low.
        clip_high: the objective clips the policy ratio above 1 + clip_high.
        sampled_by: who sampled the tokens; None: what the file says, else the engine.
        observer: receives messages.

    """
    sources = wrap_single(sources)
    require_ranges(
        step=step, temperature=temperature, trainer_temperature=trainer_temperature, trainer_version=trainer_version,
        clip_low=clip_low, clip_high=clip_high,
    )  # fmt: skip
    import msgspec

    from ckptcheck.frameworks.slime.rollout_file import write_slime_file
    from ckptcheck.rollouts import ScorerInfo, write_rollouts
    from ckptcheck.rollouts.columns import SIDES
    from ckptcheck.rollouts.convert import files
    from ckptcheck.text.file_io import require_output_apart
    from ckptcheck.text.formatting import count

    if not sources:
        raise CkptcheckError("there is nothing to convert", hint="name a file of rollouts")
    paths = [Path(path) for path in sources]
    require_choices(
        source=(source, RolloutFormat), logprobs=(logprobs, LogprobKind), sampled_by=(sampled_by, TokenSampler)
    )
    require_output_apart(to_path(output), *files(paths))
    rollouts, kind = read_rollout_files(paths, source)
    metadata = rollouts.metadata
    changes: dict[str, object] = {
        "model": model, "step": step, "logprobs": logprobs, "sampled_by": sampled_by, "clip_low": clip_low,
        "clip_high": clip_high,
    }  # fmt: skip
    if temperature is not None:
        changes["sampling"] = msgspec.structs.replace(metadata.sampling, temperature=temperature)
    version = None if trainer_version is None else str(trainer_version)
    of_trainer = {"temperature": trainer_temperature, "weight_version": version}
    if of_trainer := {name: value for name, value in of_trainer.items() if value is not None}:
        changes["trainer"] = msgspec.structs.replace(metadata.trainer or ScorerInfo(), **of_trainer)
    metadata = msgspec.structs.replace(
        metadata, **{name: value for name, value in changes.items() if value is not None}
    )
    rollouts = rollouts.with_columns(metadata)
    if output is not None:
        if Path(output).suffix == ".pt":
            write_slime_file(rollouts, Path(output))
        else:
            write_rollouts(rollouts, Path(output))
        notes = f", {len(metadata.left_out):,} left out ({metadata.left_out[0].reason})" if metadata.left_out else ""
        sides = [side for side in SIDES if f"{side}_logprobs" in rollouts]
        if "engine" not in sides:
            notes += "; there are no logprobs of the engine in it" if sides else "; there are no logprobs in it"
        numbers = f"{count(rollouts.sequence_count, 'sequence')} of {kind}, {count(len(rollouts.tokens), 'token')}"
        observer.log(f"{numbers}, written to {output}{notes}")
    return rollouts
