"""``ckptcheck parity record``: has an engine answer prompts."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from ckptcheck.text.observer import SILENT, Observer
from ckptcheck.verbs.options import (
    FROM_ONE,
    FROM_ZERO,
    KEPT,
    CallTimeout,
    ComputeDtype,
    EngineMode,
    EngineName,
    EnginePython,
    EngineTp,
    FrequencyPenalty,
    Option,
    PresencePenalty,
    PromptCount,
    PromptLength,
    Prompts,
    RepetitionPenalty,
    ResponseLength,
    RolloutOutput,
    Seed,
    Setting,
    Source,
    Step,
    Switches,
    Temperature,
    TopK,
    TopP,
)
from ckptcheck.verbs.parameter import several, to_path
from ckptcheck.verbs.verb import verb

if TYPE_CHECKING:
    from ckptcheck.rollouts import Rollouts

COHERENCE_RULES = ("PAR003", "PAR009", "PAR027", "PAR050", "PAR076")
"""The rules that judge an engine's responses alone."""


@verb()
def record_rollouts(
    source: Source,
    output: RolloutOutput = None,
    *,
    engine: EngineName = "vllm",
    prompts: Prompts = None,
    number: PromptCount = 8,
    length: PromptLength = 96,
    response: ResponseLength = 32,
    batch: Annotated[int, Setting("Prompts that are answered at once.", within=FROM_ONE)] = 8,
    temperature: Temperature = 1.0,
    top_p: TopP = 1.0,
    top_k: TopK = 0,
    presence_penalty: PresencePenalty = 0.0,
    frequency_penalty: FrequencyPenalty = 0.0,
    repetition_penalty: RepetitionPenalty = 1.0,
    seed: Seed = 0,
    ignore_eos: Annotated[bool, Setting("Generate past end tokens.")] = False,
    full: Annotated[
        int,
        Option("Response tokens of which the logprobs of the whole vocabulary are kept.", within=FROM_ZERO, panel=KEPT),
    ] = 0,
    routing: Annotated[bool, Option("Also keep which experts tokens went to.", panel=KEPT)] = False,
    step: Step = None,
    dtype: ComputeDtype = "float32",
    switch: Switches = (),
    engine_mode: EngineMode = "plain",
    engine_tp: EngineTp = 1,
    engine_python: EnginePython = None,
    timeout: CallTimeout = 900.0,
    observer: Observer = SILENT,
) -> "Rollouts":
    """Have an engine answer prompts, and write tokens and logprobs to a file. No trainer is loaded."""
    from ckptcheck.live.experiments.live_session import open_live_session, with_batch_size
    from ckptcheck.live.experiments.record import DefaultPrompts, describe_rollouts
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

    require_output_apart(to_path(output), to_path(prompts), Path(source))
    # raises CkptcheckError where there is no such engine
    registry.require_engine(engine)
    require_writable(to_path(output))
    switches = parse_switches(list(several(switch)))
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


def _log_responses(rollouts: "Rollouts", source: Path, observer: Observer) -> None:
    """Write the texts of the first responses, and whether they are coherent."""
    from ckptcheck.linter.rule_loader import load_rules
    from ckptcheck.rollouts.response_texts import read_texts
    from ckptcheck.rollouts.rollout_evidence import RolloutEvidence
    from ckptcheck.verbs.reports import build_report
    from ckptcheck.verbs.rollout_files import load_decoder

    decode_text = load_decoder(source) if (source / "tokenizer.json").is_file() else None
    for text in read_texts(rollouts, decode_text) if decode_text is not None else ():
        mean = "" if text.logprob is None else f" (mean logprob {text.logprob:.3g})"
        observer.log(f"{text.prompt} → {text.response}{mean}")
    rules = [rule for rule in load_rules() if rule.code in COHERENCE_RULES]
    report = build_report(RolloutEvidence(os.fspath(source), rollouts, decode_text=decode_text), rules)
    for finding in report.findings:
        observer.log(f"{finding.code} {finding.severity}: {finding.message}")
    if not report.findings and report.passed:
        observer.log("no sign of broken weights in the form of the texts; whether they make sense, read above")
