"""Measures the gap between an engine and a trainer, and finds its cause."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, cast

from ckptcheck.api.arguments import (
    FROM_ONE,
    Dtype,
    EngineMode,
    NumberRange,
    StrPath,
    TrainerName,
    choose_subset,
    require_choices,
    require_range,
    require_ranges,
    to_path,
    wrap_single,
)
from ckptcheck.api.report import build_report
from ckptcheck.errors import CkptcheckError, UsageError
from ckptcheck.text.observer import SILENT, Observer

if TYPE_CHECKING:
    from ckptcheck.linter.report import Report
    from ckptcheck.live.runtime.trainers.base import Trainer


COMPILING_PROBES = ("graphs", "inductor", "casts")
"""Probes that compile: minutes each, so only on demand."""


def parity_matrix(
    source: StrPath,
    *,
    lengths: int | Sequence[int] | None = None,
    data: Sequence[str] = ("real", "synthetic"),
    decoding: Sequence[str] = ("greedy", "sampling"),
    batch: int | Sequence[int] = (1, 8),
    pairs: Sequence[str] = ("transformers:vllm",),
    layouts: Sequence[str] = (),
    directions: Sequence[str] = ("engine", "trainer"),
    repeats: int = 2,
    response: int = 16,
    sequences: int = 4,
    temperature: float = 1.0,
    top_p: float = 1.0,
    top_k: int = 0,
    seed: int = 0,
    calibrate: bool = False,
    floor: StrPath | None = None,
    tp: int = 1,
    pp: int = 1,
    ep: int = 1,
    engine_tp: int = 1,
    dtype: Dtype = "float32",
    head_fp32: bool = False,
    switch: Sequence[str] = (),
    engine_mode: EngineMode = "plain",
    engine_python: StrPath | None = None,
    trainer_python: StrPath | None = None,
    max_mult_prob_error: float = 1.05,
    max_floor_multiple: float = 5.0,
    resume: StrPath | None = None,
    markdown: StrPath | None = None,
    timeout: float = 900.0,
    pictures: bool = False,
    observer: Observer = SILENT,
) -> Report:
    """Measure the gap between trainers and engines over lengths, data, decoding and batches (``ckptcheck parity matrix``).

    Args:
        source: a Hugging Face checkpoint or a Megatron run on this disk.
        lengths: tokens of prompt and response; None: 100, 1,000 and 10,000 where the model has the room.
        data: real: text in the chat template; synthetic: made-up ids.
        decoding: greedy, sampling.
        batch: requests at once.
        pairs: ``trainer:engine``; the other trainer can take the place of the engine.
        layouts: parallel layouts as a further axis, such as ``tp2`` and ``tp2pp2``: all of one for megatron, its TP for engines.
        directions: who samples the tokens: engine, trainer.
        repeats: runs of every cell.
        response: tokens of a response.
        sequences: sequences of a cell, at least.
        temperature: sampling temperature.
        top_p: nucleus sampling; 1: off.
        top_k: sampling from the k most likely tokens; 0: off.
        seed: seed of the first prompt; every further prompt adds 1.
        calibrate: measure the noise floor first, and give gaps as multiples of it.
        floor: a file of `calibrate_floor`, or rollouts with equal weights.
        tp: tensor parallelism of megatron.
        pp: pipeline parallelism of megatron.
        ep: expert parallelism of megatron.
        engine_tp: tensor parallelism of the engines.
        dtype: what both sides compute in.
        head_fp32: the trainers' output head computes in float32.
        switch: settings of the engines, as ``NAME=VALUE``.
        engine_mode: plain keeps weights readable on a CPU; stock leaves the engine as it is.
        engine_python: a Python that has the engine; None: the one that ckptcheck installed.
        trainer_python: a Python that has the trainer; None: the one that ckptcheck installed.
        max_mult_prob_error: limit of a cell's mean exp|Δ|.
        max_floor_multiple: how many times the floor is too much.
        resume: file that keeps the measurements; a later run goes on from it.
        markdown: file for the table in Markdown.
        timeout: seconds for any one call.
        pictures: draw what was found, for a notebook.
        observer: receives messages.

    """
    has_default_lengths = lengths is None
    data = wrap_single(data)
    decoding = wrap_single(decoding)
    batch = wrap_single(batch)
    pairs = wrap_single(pairs)
    layouts = wrap_single(layouts)
    directions = wrap_single(directions)
    switch = wrap_single(switch)
    require_ranges(
        repeats=repeats, response=response, sequences=sequences, temperature=temperature, top_p=top_p, top_k=top_k,
        seed=seed, tp=tp, pp=pp, ep=ep, engine_tp=engine_tp, max_mult_prob_error=max_mult_prob_error,
        max_floor_multiple=max_floor_multiple, timeout=timeout,
    )  # fmt: skip
    from ckptcheck.live.experiments.matrix import cells

    length_list = cells.LENGTHS if lengths is None else wrap_single(lengths)
    for name, numbers in (("lengths", length_list), ("batch", batch)):
        for number in numbers:
            require_range(name, number, FROM_ONE)
    from ckptcheck.linter.rule_loader import load_rules
    from ckptcheck.live.experiments.live_session import open_live_session
    from ckptcheck.live.experiments.matrix.live_matrix import MatrixSides, measure_matrix
    from ckptcheck.live.runtime.engines.engine_options import parse_switches
    from ckptcheck.live.runtime.engines.registry import ENGINES
    from ckptcheck.rollouts.metrics.noise_floor import read_noise_floor
    from ckptcheck.rollouts.prompts import Data
    from ckptcheck.rollouts.thresholds import Thresholds
    from ckptcheck.text.file_io import real_path, replace_file, require_output_apart, require_writable
    from ckptcheck.unused_options import Arguments, reject_unused_matrix_options

    given = Arguments(parity_matrix, locals())
    reject_unused_matrix_options(
        given, has_floor=calibrate or floor is not None, pairs=pairs, decoding=decoding, layouts=layouts
    )
    require_choices(dtype=(dtype, Dtype), engine_mode=(engine_mode, EngineMode))
    if calibrate and floor is not None:
        raise CkptcheckError("--calibrate measures the floor and --floor reads it: give one of the two")
    for file in (to_path(markdown), to_path(resume)):
        require_output_apart(file, to_path(floor), Path(source))
        require_writable(file)
    if markdown is not None and resume is not None and real_path(Path(markdown)) == real_path(Path(resume)):
        raise UsageError("-o, --markdown and --resume are to be files of their own")
    if parse_switches(list(switch)).logprobs == "processed":
        raise CkptcheckError(
            "the matrix compares the models' own logprobs, not processed ones",
            hint="ckptcheck parity probe --only semantics",
        )
    floor_error = read_noise_floor(Path(floor)).metrics.get("mult_prob_error") if floor is not None else None
    plan = cells.Plan(
        lengths=tuple(sorted({*length_list})),
        data=cast(tuple[Data, ...], choose_subset(data, cells.DATA, "--data")),
        decoding=cast(tuple[cells.Decoding, ...], choose_subset(decoding, cells.DECODING, "--decoding")),
        batches=tuple(sorted({*batch})),
        pairs=cells.parse_pairs(list(pairs), list(ENGINES)),
        directions=cast(tuple[cells.Direction, ...], choose_subset(directions, ("engine", "trainer"), "--directions")),
        repeats=repeats, response=response, sequences=sequences, temperature=temperature, top_p=top_p, top_k=top_k, seed=seed,
        layouts=cells.parse_layouts(list(layouts)),
    )  # fmt: skip
    if plan.temperature == 0 and "sampling" in plan.decoding:
        raise CkptcheckError("--temperature 0 is greedy decoding, and no sampling", hint="--decoding greedy")
    loaded = load_rules()
    sides = MatrixSides(tp, pp, ep, engine_tp, dtype, head_fp32, switch, engine_mode)
    with open_live_session(
        os.fspath(source), timeout=timeout, engine_python=to_path(engine_python), trainer_python=to_path(trainer_python),
        observer=observer,
    ) as live:  # fmt: skip
        trace = measure_matrix(
            live, plan, sides, resume=to_path(resume), calibrate=calibrate, default_lengths=has_default_lengths
        )
    trace = replace(trace, thresholds=Thresholds(mult_prob_error=max_mult_prob_error, floor=max_floor_multiple))
    if floor_error is not None:
        trace = replace(trace, floor=dict.fromkeys(trace.pairs, floor_error))
    report = build_report(trace, loaded, pictures=pictures)
    if markdown is not None:
        replace_file(Path(markdown), trace.markdown().encode())
    return report


def parity_probe(
    source: StrPath,
    *,
    engine: str = "vllm",
    only: Sequence[str] = (),
    without: Sequence[str] = (),
    compilation: bool = False,
    trainer: TrainerName = "transformers",
    prompts: StrPath | None = None,
    length: int = 64,
    response: int = 32,
    long: int = 64,
    room: int = 512,
    temperature: float = 0.7,
    top_p: float = 1.0,
    top_k: int = 0,
    presence_penalty: float = 0.0,
    frequency_penalty: float = 0.0,
    dtype: Dtype = "float32",
    head_fp32: bool = False,
    floor: StrPath | None = None,
    switch: Sequence[str] = (),
    engine_mode: EngineMode = "plain",
    engine_python: StrPath | None = None,
    trainer_python: StrPath | None = None,
    timeout: float = 900.0,
    pictures: bool = False,
    observer: Observer = SILENT,
) -> Report:
    """Probe an engine for the known ways in which its logprobs drift from a trainer's (``ckptcheck parity probe``).

    Args:
        source: a Hugging Face checkpoint or a Megatron run on this disk.
        engine: the inference engine: vllm or sglang.
        only: run these probes; empty: all but those that compile.
        without: leave these probes out.
        compilation: also run the probes that compile: graphs, inductor, casts.
        trainer: the trainer, where a probe needs one.
        prompts: file of prompts: JSON lines (tokens, messages, text), or plain lines; None: built-in ones.
        length: tokens of a built-in prompt, at most.
        response: tokens of a response.
        long: tokens of the long response that is compared with one prefill.
        room: tokens of the longest sequence.
        temperature: sampling temperature.
        top_p: nucleus sampling; 1: off.
        top_k: sampling from the k most likely tokens; 0: off.
        presence_penalty: taken from the logits of tokens that the response has already; 0: off.
        frequency_penalty: taken as often as the response has a token already; 0: off.
        dtype: what both sides compute in.
        head_fp32: the trainer's output head computes in float32.
        floor: a file of `calibrate_floor`, or rollouts with equal weights: a gap of a few times that is no error (PRB005).
        switch: settings of the engine, as ``NAME=VALUE``.
        engine_mode: plain keeps weights readable on a CPU; stock leaves the engine as it is.
        engine_python: a Python that has the engine; None: the one that ckptcheck installed.
        trainer_python: a Python that has the trainer; None: the one that ckptcheck installed.
        timeout: seconds for any one call.
        pictures: draw what was found, for a notebook.
        observer: receives messages.

    """
    only = wrap_single(only)
    without = wrap_single(without)
    switch = wrap_single(switch)
    require_ranges(
        temperature=temperature, top_p=top_p, top_k=top_k, presence_penalty=presence_penalty,
        frequency_penalty=frequency_penalty, timeout=timeout,
    )  # fmt: skip
    require_range("length", length, NumberRange(16, is_whole=True))
    for name, number in (("response", response), ("long", long)):
        require_range(name, number, NumberRange(4, is_whole=True))
    require_range("room", room, NumberRange(64, is_whole=True))
    from ckptcheck.linter.rule_loader import load_rules
    from ckptcheck.live.experiments.default_prompts import DefaultPrompts
    from ckptcheck.live.experiments.live_session import open_live_session
    from ckptcheck.live.experiments.probes.environment import EngineSetup, ProbeEnvironment
    from ckptcheck.live.experiments.probes.registry import has_experts, select_probes
    from ckptcheck.live.experiments.probes.runner import run_probes
    from ckptcheck.live.runtime.engines import registry
    from ckptcheck.live.runtime.engines.base import Engine
    from ckptcheck.live.runtime.engines.engine_options import parse_switches
    from ckptcheck.live.runtime.engines.sampling import Sampling
    from ckptcheck.rollouts.metrics.noise_floor import read_noise_floor
    from ckptcheck.unused_options import Arguments, reject_unused_probe_options

    given = Arguments(parity_probe, locals())
    reject_unused_probe_options(given, has_prompts=prompts is not None, has_only=bool(only))
    require_choices(trainer=(trainer, TrainerName), dtype=(dtype, Dtype), engine_mode=(engine_mode, EngineMode))
    # raises CkptcheckError where there is no such engine
    registry.require_engine(engine)
    probes = select_probes(only, without)
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

        def start_trainer(dtype: str, head_fp32: bool, instead: Trainer | None) -> Trainer:
            """Start the trainer."""
            begin(f"starting the trainer: {dtype}{', head in float32' if head_fp32 else ''}")
            return live.start_trainer(trainer, dtype=dtype, head_fp32=head_fp32, replaces=instead)

        environment = ProbeEnvironment(
            default_prompts.choose(length, 4, to_path(prompts)), default_prompts.vocabulary, live.folder,
            start_trainer=start_trainer, sampling=Sampling(
                temperature, top_p, top_k, presence_penalty=presence_penalty, frequency_penalty=frequency_penalty
            ),
            setup=EngineSetup(parse_switches(list(switch))), stop_tokens=default_prompts.stop_tokens,
            conversation=default_prompts.conversation, length=room, response=response, long=long, timeout=timeout, dtype=dtype,
            head_fp32=head_fp32, say=begin,
        )  # fmt: skip
        trace = run_probes(os.fspath(source), environment, start_engine, probes)
        return build_report(replace(trace, floor=noise_floor), loaded, pictures=pictures)


def parity_why(
    file: StrPath,
    source: StrPath | None = None,
    *,
    engine: str = "vllm",
    engine_source: StrPath | None = None,
    trainer: TrainerName = "transformers",
    floor: StrPath | None = None,
    dtype: Dtype | None = None,
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
    pictures: bool = False,
    observer: Observer = SILENT,
) -> Report:
    """Name the layer of a gap's cause, and the experiment that shows it (``ckptcheck parity why``).

    Args:
        file: rollouts: as `record_rollouts`, `score_rollouts` or `convert_rollouts` wrote them.
        source: the trainer's checkpoint; None: nothing runs, and the report explains what the file alone can show.
        engine: the inference engine; ``none``: only the trainer runs.
        engine_source: the checkpoint that the engine loads, where it is another one than `source`.
        trainer: the trainer that scores.
        floor: the noise floor of this model: a file of `calibrate_floor`, or rollouts; None: assumed by the dtype.
        dtype: what the engine computes in; None: as recorded.
        trainer_dtype: what the trainer computes in; None: as recorded.
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
        pictures: draw what was found, for a notebook.
        observer: receives messages and progress.

    """
    switch = wrap_single(switch)
    require_ranges(tp=tp, pp=pp, ep=ep, engine_tp=engine_tp, timeout=timeout)
    from ckptcheck.linter.rule_loader import load_rules
    from ckptcheck.live.experiments.attribution import live_search
    from ckptcheck.live.experiments.attribution.backend import RecordedBackend
    from ckptcheck.live.experiments.attribution.experiments import EXPERIMENTS
    from ckptcheck.live.experiments.attribution.search import run_search
    from ckptcheck.live.experiments.attribution.trace import Attribution
    from ckptcheck.live.experiments.live_session import open_live_session
    from ckptcheck.rollouts import read_rollouts
    from ckptcheck.unused_options import Arguments, reject_unused_why_options

    given = Arguments(parity_why, locals())
    reject_unused_why_options(given, has_source=source is not None, engine=engine)
    require_choices(trainer=(trainer, TrainerName), engine_mode=(engine_mode, EngineMode))
    require_choices(dtype=(dtype, Dtype), trainer_dtype=(trainer_dtype, Dtype))
    rollouts = read_rollouts(Path(file))
    if rollouts.defects:
        raise CkptcheckError(f"{file} is malformed: {rollouts.defects[0].text}", hint=f"ckptcheck parity judge {file}")
    if "engine_logprobs" not in rollouts:
        raise CkptcheckError(f"{file} has no logprobs of an engine")
    measured_floor = live_search.read_floor(Path(floor)) if floor is not None else None
    loaded = load_rules()
    if source is None:
        if "trainer_logprobs" not in rollouts:
            raise CkptcheckError(
                f"{file} has no logprobs of a trainer", hint=f"ckptcheck parity why {file} SOURCE scores it first"
            )
        result = run_search(
            RecordedBackend(rollouts), EXPERIMENTS, measured_floor or live_search.assume_floor(rollouts)
        )
    else:
        with open_live_session(
            os.fspath(source), timeout=timeout, engine_python=to_path(engine_python),
            trainer_python=to_path(trainer_python), observer=observer,
        ) as live:  # fmt: skip
            rollouts, result = live_search.search_live(
                live, rollouts, measured_floor,
                live_search.SearchEngine(engine, to_path(engine_source), dtype, engine_mode, engine_tp, switch),
                live_search.SearchTrainer(trainer, trainer_dtype, head_fp32, tp, pp, ep),
            )  # fmt: skip
    metadata = rollouts.metadata
    sides = (
        live_search.describe_side(metadata.engine) or "engine",
        live_search.describe_side(metadata.trainer) or "trainer",
    )
    return build_report(
        Attribution(os.fspath(file), result, sides, has_measured_floor=measured_floor is not None),
        loaded,
        pictures=pictures,
    )


def localize(
    source: StrPath | None = None,
    *,
    dumps: tuple[StrPath, StrPath] | None = None,
    engine: str = "vllm",
    engine_source: StrPath | None = None,
    trainer: TrainerName = "transformers",
    tp: int = 1,
    pp: int = 1,
    ep: int = 1,
    engine_tp: int = 1,
    engine_mode: EngineMode = "plain",
    dtype: Dtype = "float32",
    tokens: Sequence[int] | None = None,
    limit: float | None = None,
    engine_python: StrPath | None = None,
    trainer_python: StrPath | None = None,
    timeout: float = 900.0,
    pictures: bool = False,
    observer: Observer = SILENT,
) -> Report:
    """Send one prompt through trainer and engine and name the first module whose output differs (``ckptcheck parity localize``).

    Args:
        source: a Hugging Face checkpoint on this disk.
        dumps: compare dumps made elsewhere (msProbe's, SGLang's) instead of running anything.
        engine: the inference engine: vllm or sglang; or the other trainer: transformers or megatron.
        engine_source: the checkpoint that the engine loads, where it is another one than `source`.
        trainer: the reference.
        tp: tensor parallelism of the trainer.
        pp: pipeline parallelism of the trainer.
        ep: expert parallelism of the trainer.
        engine_tp: tensor parallelism of the engine.
        engine_mode: plain keeps weights readable on a CPU; stock leaves the engine as it is.
        dtype: what both sides compute in.
        tokens: the prompt as ids; None: 48 made-up ones, always the same.
        limit: relative difference that still counts as equal; None: by the dtype's rounding.
        engine_python: a Python that has the engine; None: the one that ckptcheck installed.
        trainer_python: a Python that has the trainer; None: the one that ckptcheck installed.
        timeout: seconds for each side.
        pictures: draw what was found, for a notebook.
        observer: receives messages.

    """
    require_ranges(tp=tp, pp=pp, ep=ep, engine_tp=engine_tp, limit=limit, timeout=timeout)
    if tokens is not None:
        tokens = wrap_single(tokens)
        if any(not isinstance(token, Integral) for token in tokens):
            raise CkptcheckError(
                f"--tokens takes ids, not {', '.join(map(str, tokens))}", hint="as in tokens=[1, 2, 3]"
            )
    if dumps is not None and (isinstance(dumps, (str, os.PathLike)) or len(dumps) != 2):
        raise CkptcheckError("--dumps takes two dumps", hint="one of each side, A and B")
    from ckptcheck.unused_options import Arguments, reject_unused_localize_options

    given = Arguments(localize, locals())
    reject_unused_localize_options(given, has_dumps=dumps is not None, engine=engine)
    require_choices(trainer=(trainer, TrainerName), dtype=(dtype, Dtype), engine_mode=(engine_mode, EngineMode))
    if source is None and dumps is None:
        raise CkptcheckError("there is nothing to compare", hint="name a checkpoint, or two dumps with --dumps A B")
    if dumps is not None:
        from ckptcheck.live.localize.dumps import compare_dumps

        localization = compare_dumps(Path(dumps[0]), Path(dumps[1]), to_path(source), dtype, limit)
    else:
        from ckptcheck.live.localize.live_checkpoint import LocalizeSides, localize_checkpoint

        assert source is not None
        sides = LocalizeSides(
            engine, to_path(engine_source), trainer, tp, pp, ep, engine_tp, engine_mode, dtype, to_path(engine_python),
            to_path(trainer_python), timeout,
        )  # fmt: skip
        localization = localize_checkpoint(Path(source), sides, tokens=tokens, limit=limit, observer=observer)
    return build_report(localization, pictures=pictures)
